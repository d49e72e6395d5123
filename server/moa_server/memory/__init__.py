"""Memory rows: kept, chosen and paid for."""
