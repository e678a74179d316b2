"""Full-text search: one way to cut text into words, one file for the SQL of each database."""
