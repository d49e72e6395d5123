"""Conversations that last: what was said, on this device's disk, as it is shown."""
