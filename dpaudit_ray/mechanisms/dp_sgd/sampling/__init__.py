"""Who is in the batch at step t. One file per scheme; `base` says what a scheme must offer."""
