"""What measurements run on: programs, pinned cores, links, prompts."""
