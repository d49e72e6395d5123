"""Which drafters there are for a model: published ones that are known, those in the hub's cache, and the best one."""
