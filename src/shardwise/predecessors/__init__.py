"""Models that shardwise unites: files, formulas, searches and tables, one folder for each."""
