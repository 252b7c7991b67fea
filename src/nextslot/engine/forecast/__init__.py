"""Explains why a job waits, and simulates when it will start."""
