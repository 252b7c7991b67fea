"""The job types `story` and `research`, and the language models that they ask."""
