"""`moa-bench timeline`: one answer, every frame."""
