"""`moa-bench scale`: users a GPU and cost on hardware that is not here; virtual time, no model."""
