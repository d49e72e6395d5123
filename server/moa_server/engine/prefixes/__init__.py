"""Text whose keys and values several sessions share: what is known of it, the pages themselves, and the rules."""
