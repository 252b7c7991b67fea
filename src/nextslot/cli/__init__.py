"""The command line, for people and scripts: uses a running server or a data directory. Its entry is `command.main`."""
