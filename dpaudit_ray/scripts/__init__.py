"""Audits of training scripts: one run inspected, every step a trial, whole runs as trials."""
