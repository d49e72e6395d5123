"""The packet backend, the reference: two network namespaces joined by TUN devices. Needs root."""
