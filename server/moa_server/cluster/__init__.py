"""Replicas on a Ray cluster: Ray decides where they run, how many and when; they keep each other's addresses.

Only `connection`, `control` and `replica` import Ray; the rules for the roster, for scaling and for quotas are pure.
"""
