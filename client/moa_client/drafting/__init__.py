"""Drafting on this device: the drafters, their thread, and when to draft how far."""
