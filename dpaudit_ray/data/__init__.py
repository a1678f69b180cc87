"""Data sets by name and from files. One file per source; `base` has the interface."""
