"""The 1-D processes behind the loss-landscape adversary, sampled and exact."""
