"""What people see: tables, charts, traces and graphs."""
