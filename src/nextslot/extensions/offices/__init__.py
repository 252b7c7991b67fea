"""The office API: jobs of a team, in its own words."""
