"""The one error of this package, which imports nothing of ours: callers translate it."""


class KernelError(Exception):
    """Shapes, weights or a processor that the kernels do not take; the text says which, for people."""
