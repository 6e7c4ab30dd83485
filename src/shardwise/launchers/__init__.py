"""Launch files, logs and traces of trainers: one folder for each trainer."""
