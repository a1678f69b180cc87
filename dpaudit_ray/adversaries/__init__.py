"""Who attacks. One file per family, crafter and scorer side by side; `base` has the interface."""
