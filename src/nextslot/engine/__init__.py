"""The machine: one component a file, plain functions over a transaction; only the shell around them is async.

Nothing here reads the time, draws a random number, makes an id, sleeps or starts a thread by itself: all of it is
given, so that the whole engine also runs on virtual time, from a seed.
"""
