"""Trains many models at once. Everything here imports torch, nothing imports Ray."""
