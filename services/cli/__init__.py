"""The command line: starts everything on one machine, and is the client of the HTTP API."""
