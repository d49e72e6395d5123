"""Trained drafters for moa's default model, a folder each. Nothing is imported from here: moa looks up the files."""
