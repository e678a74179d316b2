"""The artifact service: bare git repositories, their tokens, smart HTTP, and blobs."""
