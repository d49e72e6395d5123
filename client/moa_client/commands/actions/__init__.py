"""What the commands do, a module each. They are imported when a command runs: its --help needs none of what they do."""
