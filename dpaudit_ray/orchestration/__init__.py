"""Drives a sweep: packs to trainers, scores to the aggregator, estimates to the run directory.

Ray is imported in `cluster`, `actors` and `submission` only; everything else runs and is tested
without it.
"""
