"""The target as teacher: what it computes, and what it writes."""
