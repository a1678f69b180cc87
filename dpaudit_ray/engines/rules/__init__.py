"""Per-sample gradients of one kind of layer each, and of losses."""
