"""What stands on the terminal and can still be changed there: answers that a server has not verified to their end."""
