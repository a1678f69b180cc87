"""Stored files: where they are, and whether they are complete."""
