"""`moa-bench micro`: what the parts cost, one thread each, in one run."""
