"""Mechanisms, which are what is audited: a file or a package each, and their interface `base`."""
