"""The target's weights: read by name, cut into parts, packed."""
