"""The client: owns the conversation, drafts, and talks to the server."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # used as a library, it logs nowhere by itself
