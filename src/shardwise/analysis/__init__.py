"""One strategy in detail: operations, communication, stages, timeline, graph."""
