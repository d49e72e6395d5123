"""Reads calls out of an answer's text as it comes."""
