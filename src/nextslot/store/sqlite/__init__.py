"""Stores everything in one SQLite file: connections, readers, checks of the file."""
