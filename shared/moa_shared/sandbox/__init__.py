"""What untrusted files of a model may do with text, and the child process in which they do it."""
