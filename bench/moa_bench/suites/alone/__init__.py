"""What a device writes when its server is gone, by how much of the answer it had (`moa-bench alone`)."""
