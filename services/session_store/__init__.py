"""The read models: runs and the spans of their traces, in SQL. Everything here can be rebuilt from the journals."""
