"""The link to the server: channel, stream, timers."""
