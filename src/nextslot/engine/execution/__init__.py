"""Runs jobs: tasks, timers, timeouts."""
