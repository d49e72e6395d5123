"""Measures whether links on this machine do what they say. Every check has a planted error, which it must find."""
