"""Drafting on the server: for sessions whose devices send nothing in time."""
