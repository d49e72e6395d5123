"""Whether answers stay whole while their server is restarted under load."""
