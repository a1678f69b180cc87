"""How noisy gradients move θ. One file per optimizer; `base` says what one must offer."""
