"""Runs that engines have: handed over after the commit of their start, followed by their records, and adopted."""
