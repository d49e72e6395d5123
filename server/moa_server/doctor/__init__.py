"""What stands between this machine and a server that others can rely on, step by step."""
