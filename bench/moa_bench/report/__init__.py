"""What measurements say: figures, spreads, tables."""
