"""Logs, measurements and traces."""
