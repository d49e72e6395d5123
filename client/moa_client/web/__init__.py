"""HTTP on this device: which requests may enter, how errors read, and the server that runs inside the daemon's loop."""
