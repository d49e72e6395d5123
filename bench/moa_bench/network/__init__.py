"""`moa-bench network`: ways to answer, over emulated links."""
