"""Who may use this server: callers, what they may do, and how much."""
