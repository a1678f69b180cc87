"""Adversaries: one file per family, crafter and scorer side by side; `base` has the interface."""
