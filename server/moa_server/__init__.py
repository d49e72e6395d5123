"""The server: runs the target, verifies drafts, streams verdicts and memory."""
