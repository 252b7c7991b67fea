"""Commands, a file for each subject."""
