"""Drafters as their authors publish them, turned into checkpoints of ours."""
