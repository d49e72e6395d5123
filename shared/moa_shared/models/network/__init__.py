"""The target over the kernels: families, layers, the network."""
