"""ollama's API: what requests may ask for, and the objects that answers are sent as."""
