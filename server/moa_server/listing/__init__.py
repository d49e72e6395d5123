"""The models that are on this machine, as an operator sees them."""
