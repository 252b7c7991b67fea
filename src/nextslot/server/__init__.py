"""The HTTP API: routes that call the services of a scheduler. Nothing here knows SQL or decides."""
