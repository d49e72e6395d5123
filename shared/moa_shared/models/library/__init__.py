"""The models that are on this disk already: where other programs keep them, what each is, and which a name means."""
