"""Work in parts: planned, kept when finished, and done in this process or by the workers of a Ray cluster."""
