"""Measures whether links on this machine do what they say. Every check can be given a planted error, which it must find."""
