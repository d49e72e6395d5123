"""Where a target comes from: the hub, a package, a folder, the cache."""
