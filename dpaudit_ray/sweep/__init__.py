"""What is asked: sweep files and their grids."""
