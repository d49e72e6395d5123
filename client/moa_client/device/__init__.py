"""What this device holds for a server's target: found, fetched, loaded."""
