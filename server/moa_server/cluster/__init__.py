"""Replicas on a Ray cluster: Ray decides where they run, how many and when; they keep each other's addresses."""
