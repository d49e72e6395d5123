"""A link over several servers of one model, and which of them to talk to."""
