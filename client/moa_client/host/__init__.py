"""What a device holds for its server: the drafter, and conversations in text over engines."""
