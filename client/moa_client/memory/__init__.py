"""Memory from the server: what was received, what to wait for, and which codec to use."""
