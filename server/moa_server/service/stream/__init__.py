"""The Converse stream: frames in, frames out, and the session between them."""
