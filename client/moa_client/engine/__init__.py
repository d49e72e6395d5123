"""The conversation with a server: one loop over one inbox."""
