"""Many models at once: stacked parameters, taped passes, and the check against autograd."""
