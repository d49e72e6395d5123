"""The life of the server process: where it listens, what is done every second, and how it ends."""
