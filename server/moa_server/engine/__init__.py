"""The engine: all sessions, whose turn it is, and the thread that computes."""
