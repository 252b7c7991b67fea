"""Signals: answers for which jobs wait, and the deadlines of these waits."""
