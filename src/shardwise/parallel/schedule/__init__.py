"""How micro-batches pass through the pipeline, and for how long a stage waits."""
