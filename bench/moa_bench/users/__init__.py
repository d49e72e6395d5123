"""Many users of one server: who asks what, how they get their answers, and what arithmetic says of them."""
