"""The commands of a chat, which begin with a slash."""
