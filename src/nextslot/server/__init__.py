"""The HTTP API: routes on the faces of a scheduler. Nothing here knows SQL, and no rule of the engine is repeated."""
