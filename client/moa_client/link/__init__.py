"""The link to the servers: which one, its channel, its streams, and timers."""

import logging

logging.getLogger("moa_client").addHandler(logging.NullHandler())  # used as a library, it logs nowhere by itself
