"""Guesses that take no drafter: what the conversation repeats, and what the target usually says."""
