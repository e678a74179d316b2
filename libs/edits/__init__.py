"""Edits to files as pure functions: bytes in, bytes or a typed error out; a failed edit changes nothing."""
