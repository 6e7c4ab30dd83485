"""What people see: tables and, later, charts, timelines and hand-overs to launchers."""
