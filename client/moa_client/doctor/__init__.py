"""What lies between this device and its server, step by step, and what to expect of both."""
