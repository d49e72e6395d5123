"""The protocol: what both ends say to each other and must agree on."""
