"""A fleet on paper: ten thousand clients, a hundred replicas, and what happens when many come back at once."""
