"""The commands of `moa-client`, a module each, imported when one is used. What only runs it needs is imported there."""
