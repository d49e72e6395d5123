"""Which calls may begin, and what they may cost."""
