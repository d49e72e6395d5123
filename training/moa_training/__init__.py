"""Training, baselines and evaluation of drafters."""
