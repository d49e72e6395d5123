"""`moa-bench scale`: users, cost and bandwidth on hardware that is not here."""
