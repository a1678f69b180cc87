"""The papers' architectures. One file per network; `base` has the interface."""
