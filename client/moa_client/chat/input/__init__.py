"""How a user types: the questions of before, and completion of commands."""
