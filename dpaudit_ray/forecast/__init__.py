"""Forecasts: the time that a sweep takes, and the bounds that it can show."""
