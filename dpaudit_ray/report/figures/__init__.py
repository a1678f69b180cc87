"""Figures as PNG: of one audit, of a whole run, and the few shapes that all of them are made of."""
