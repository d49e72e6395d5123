"""The inference thread and its jobs."""
