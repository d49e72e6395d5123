"""The draft tree, whole and as it is streamed."""
