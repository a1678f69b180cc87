"""What is audited. One file per mechanism; `base` says what a mechanism must offer."""
