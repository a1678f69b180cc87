"""Observes one run of a script from inside its process, for checks that judge its record."""
