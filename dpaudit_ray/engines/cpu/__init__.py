"""Compiled loops, memory and threads of a CPU."""
