"""`moa-bench engine`: what a forward costs on each engine."""
