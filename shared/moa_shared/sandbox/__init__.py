"""What untrusted files of a model may do with text, and the child process in which they do it.

The child imports this package and `tokenization` alone, so that it starts quickly and stays small.
"""
