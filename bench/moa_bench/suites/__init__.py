"""The measurements: each suite is a folder, and what it measures is a result that tables show."""
