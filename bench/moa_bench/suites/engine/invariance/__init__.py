"""`moa-bench invariance`: whether a row's bits depend on what is computed with it."""
