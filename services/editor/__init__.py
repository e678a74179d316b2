"""The editor service: turns one planned step into changed files."""
