"""`moa-bench single`: all ways to draft on one device, and what a user would run instead, question by question."""
