"""Memory that comes from the server: what was received, what to wait for, and at which codec."""
