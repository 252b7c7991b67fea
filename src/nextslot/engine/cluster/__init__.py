"""Joins this node to the others, and recovers what a crash left behind."""
