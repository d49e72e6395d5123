"""The servers that the user has named: where they are, which are in use, and how this device proves who it is."""
