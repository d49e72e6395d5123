"""What a user describes: profiles, scenarios, changes."""
