"""The services, one folder each; none imports another (cli, which composes them, excepted)."""
