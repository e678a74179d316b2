"""The libraries: the ground that every service stands on."""
