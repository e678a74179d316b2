"""The planner: an issue and a repository become a plan of one to five steps."""
