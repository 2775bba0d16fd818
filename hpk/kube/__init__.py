"""The only HTTP to the API server."""
