"""`moa-bench simulate`: schedules of drafts in virtual time."""
