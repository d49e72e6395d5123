"""What TLS alone can tell about a server and about this device's certificate."""
