"""What both ends must agree on: drafter, codec, draft tree, coupled sampling, model sources, errors."""
