"""How far the levels are from float32 (`moa-bench quality`)."""
