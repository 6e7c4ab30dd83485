"""How ranks are laid out: placement, process groups, pipeline stages, constraints, schedules."""
