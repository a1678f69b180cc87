"""Modules that the recipes next door put together. They import torch, so recipes load them late."""
