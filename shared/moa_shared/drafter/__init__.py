"""The drafter network in two halves: the memory encoder (server) and the draft decoder (client)."""
