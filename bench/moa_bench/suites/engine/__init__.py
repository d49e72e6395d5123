"""The target's forward next to other engines, the quality of its texts, and whether its bits depend on the batch."""
