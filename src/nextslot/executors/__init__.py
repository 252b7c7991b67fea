"""Runs work: job types, the context of a handler, processes, run files. Does not use the database."""
