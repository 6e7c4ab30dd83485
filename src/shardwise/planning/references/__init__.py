"""The search spaces of other models, Calculon, NERSC's model and AMPeD, by their own formulas."""
