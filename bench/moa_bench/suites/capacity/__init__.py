"""How many users one server serves at once, and how well each of them."""
