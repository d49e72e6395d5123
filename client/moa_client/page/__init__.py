"""The page in a browser: its files, its routes, and what it needs from the program that serves it."""
