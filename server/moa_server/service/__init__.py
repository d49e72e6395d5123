"""The gRPC service: calls and streams."""
