"""Drafters of other authors, to compare with: EAGLE-2 and a small language model of its own."""
