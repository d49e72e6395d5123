"""Drafting: chains, the paper's dynamic trees, drafts that grow while they are verified, prompt look-up and n-grams."""
