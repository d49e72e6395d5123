"""The link to the server: channel, stream, timers."""

import logging

logging.getLogger("moa_client").addHandler(logging.NullHandler())  # used as a library, it logs nowhere by itself
