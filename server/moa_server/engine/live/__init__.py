"""A session on this server: its parts, each with one writer."""
