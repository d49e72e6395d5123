"""The layers of a drafter, and what computes them."""
