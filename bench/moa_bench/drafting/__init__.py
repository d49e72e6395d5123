"""Who drafts for one user: the server, the device or both."""
