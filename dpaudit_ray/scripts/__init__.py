"""Audits of one's own training script: one run looked into, every step a trial, whole runs."""
