"""What the next forward does."""
