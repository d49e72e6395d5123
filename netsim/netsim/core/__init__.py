"""The link model: pure, seeded, in virtual time. Nothing here reads a clock, a socket or a file."""
