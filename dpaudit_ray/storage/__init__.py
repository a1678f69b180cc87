"""What lies where, and whether it is whole."""
