"""Sets up a server for others: an authority of its own, a certificate, keys, settings, invitations."""
