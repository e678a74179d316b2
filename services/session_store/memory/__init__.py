"""What is remembered of a user."""
