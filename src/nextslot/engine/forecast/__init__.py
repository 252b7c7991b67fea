"""Explains why a job waits, and forecasts when a job will start."""
