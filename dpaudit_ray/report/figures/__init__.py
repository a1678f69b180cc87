"""Figures as PNG: of one audit, of a whole run, and the shapes that both are made of."""
