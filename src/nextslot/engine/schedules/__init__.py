"""Creates jobs from schedules and templates."""
