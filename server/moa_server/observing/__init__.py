"""What an operator sees of a running server: metrics for Prometheus, and its health. Nothing of a text is in it."""
