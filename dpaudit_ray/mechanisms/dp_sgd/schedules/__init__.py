"""How the learning rate changes. One file per schedule; `base` says what one must offer."""
