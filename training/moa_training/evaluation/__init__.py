"""Drafters on questions: acceptance, text alone, tasks."""
