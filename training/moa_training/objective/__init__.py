"""The training form of a drafter: bounded blocks, all positions of a row at once, and its losses."""
