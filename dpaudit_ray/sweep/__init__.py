"""Sweep files and their grids: what is asked."""
