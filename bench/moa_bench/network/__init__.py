"""`moa-bench network`: ways to answer, compared over emulated links."""
