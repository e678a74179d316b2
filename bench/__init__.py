"""Speed, as ratios to a floor measured in the same run. Never a timed assertion: a table to read."""
