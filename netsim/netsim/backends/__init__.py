"""What carries the traffic: packets between namespaces (tun), or the stream between two sockets (proxy)."""
