"""EAGLE-3 on the device: its layer reads one row a token, to which the server projects three of the target's states."""
