"""Measurements of the whole system and their tables."""
