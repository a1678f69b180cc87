"""The version of the package, in one place that everything may import."""

__version__ = "1.0.0"
