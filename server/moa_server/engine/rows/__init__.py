"""Which memory rows are coded when."""
