"""Answers whose link is cut: `moa-bench cut`, `texts`, `codecs`, `record`."""
