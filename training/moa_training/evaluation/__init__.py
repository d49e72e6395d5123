"""Drafters on questions: acceptance, standalone text, tasks."""
