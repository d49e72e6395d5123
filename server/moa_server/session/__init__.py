"""One conversation on the server, as a pure state machine."""
