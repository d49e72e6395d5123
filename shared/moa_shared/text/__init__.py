"""Text: as tokens come, as the chat template wants it, harmless for terminals."""
