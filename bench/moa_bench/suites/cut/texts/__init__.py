"""Whole answers over a link that is cut, against the server's own (`moa-bench texts`)."""
