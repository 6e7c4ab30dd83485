"""Self-contained HTML pages: charts, tables and text in one file that makes no request."""
