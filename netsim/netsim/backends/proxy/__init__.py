"""The stream backend: needs no privileges, sees bytes instead of packets, and so is approximate."""
