"""A program that says how fleets are, over one connection to Ray: a name a line in, a line of JSON out.

It says what `moa-server cluster status --json` does, which takes seconds a time, most of them to import Ray.
"""

from __future__ import annotations

import json
import sys
import time

from moa_server.cluster.connection import connected

POLL_SECONDS = 0.2


def main() -> None:
    out = sys.stdout  # what is printed while there is a connection goes elsewhere
    with connected(None):
        from moa_server.cluster import control

        for line in sys.stdin:
            time.sleep(POLL_SECONDS)  # who waits for something asks again at once
            name = line.strip()
            replicas, state = control.reports(name), control.state_of(name)
            print(json.dumps({"state": state, "replicas": [each.facts() for each in replicas]}), file=out, flush=True)


if __name__ == "__main__":
    main()
