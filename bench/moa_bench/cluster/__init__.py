"""What Ray costs between a client and a replica."""
