"""Whether the server of this container is ready, for HEALTHCHECK: exit status 0, else 1 and a line that says why."""

import os
import sys
import urllib.request

port = os.environ.get("MOA_SERVER_METRICS_PORT", "9464")
try:
    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=4).read()
except OSError as error:
    sys.exit(f"not ready: {error}")
