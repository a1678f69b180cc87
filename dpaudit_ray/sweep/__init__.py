"""Sweep files and their grids: the settings of all audits."""
