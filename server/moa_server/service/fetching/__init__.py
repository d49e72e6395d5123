"""The files that clients fetch."""
