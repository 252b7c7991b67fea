"""Signals: answers that jobs wait for, and the deadlines of those waits."""
