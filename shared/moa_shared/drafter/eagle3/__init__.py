"""EAGLE-3 in two halves: the server projects three of the target's states to one row, the device's layer reads it."""
