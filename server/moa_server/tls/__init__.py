"""TLS of the server: its certificate, read again when the files change, and whether it may listen without one."""
