"""The command line, for people and scripts: talks to a running server or works on a data directory. `main.main` is the
entry.
"""
