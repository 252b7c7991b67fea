"""Pure decisions: each takes values (and `now` or a chance where it matters) and returns a value."""
