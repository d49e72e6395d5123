"""Whether answers stay whole while the replicas of a fleet are killed, replaced, joined and cut off under load."""
