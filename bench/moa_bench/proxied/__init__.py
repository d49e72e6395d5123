"""What a proxy in front of a server costs."""
