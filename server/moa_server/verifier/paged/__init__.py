"""What the target in torch computes with: pages of keys and values, ragged rows, attention over both, graphs."""
