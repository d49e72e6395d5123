"""An event simulation of one answer over a link: virtual time, seeded, no I/O, the real state machines of both ends."""
