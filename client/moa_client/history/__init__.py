"""Conversations that last, and responses to programs: what was said, on this device's disk, as it is shown."""
