"""Sandbox: computers for untrusted code, one workspace each."""
