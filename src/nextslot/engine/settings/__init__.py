"""Stores settings of offices, API keys and the audit log."""
