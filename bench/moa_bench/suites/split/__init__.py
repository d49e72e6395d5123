"""`moa-bench split`: all ways to draft over links, with every drafter, question by question."""
