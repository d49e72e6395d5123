"""The sessions of a server, and the memory that they share."""
