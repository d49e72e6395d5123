"""The servers that an operator runs as one: who they are, and what each tells clients of the others."""
