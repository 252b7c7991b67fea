"""Maintenance of a database: doctor, backup, export, import, moving to another database."""
