"""Runs on engines: handing a run over after the commit of its start, following its records, and adopting it."""
