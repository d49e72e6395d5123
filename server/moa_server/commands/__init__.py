"""The commands of `moa-server`: each module holds one, and imports what it needs when it runs."""
