"""What a server keeps of sessions that are over (`moa-bench soak`)."""
