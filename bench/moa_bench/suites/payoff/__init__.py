"""Where drafts pay: speed by round trip and load (`moa-bench payoff`)."""
