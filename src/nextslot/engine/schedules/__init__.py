"""Makes jobs of schedules and templates."""
