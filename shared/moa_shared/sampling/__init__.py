"""Coupled sampling: the text is a function of target, prompt, settings and seed."""
