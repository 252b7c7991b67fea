"""Maintains a database offline: doctor, backup, export, import, moving to another database."""
