"""The commands of `moa-client`, a module each, imported when one is used. What runs is in `actions`."""
