"""Which tokens may follow in an answer that must have a form."""
