"""A program that starts a node of Ray as `ray start` does, but waits longer for its scheduler: 30 s, for which Ray has
no setting, are short on a busy machine. It leaves out what nothing here uses: Ray's server for programs outside of the
cluster, the one of its dashboard, and most of its commands. `LocalRay` runs it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 150.0  # less than a start may take in all
POLL_SECONDS = 0.2
# Ray has these commands where their modules can be imported, which takes most of the time that `start` takes.
OTHER_COMMANDS = ("ray.dashboard.modules.job.cli", "ray.serve.scripts", "ray.util.state.state_cli")


def patient(look: Callable[..., Any]) -> Callable[..., Any]:
    """Looks again until something is found, for as long as a start may take."""
    deadline = time.monotonic() + PATIENCE_SECONDS

    def wait(*arguments: Any) -> Any:
        while True:
            try:
                return look(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    return wait


if __name__ == "__main__":
    for name in OTHER_COMMANDS:
        sys.modules[name] = None  # type: ignore[assignment]
    from ray._private import services
    from ray._private.node import Node
    from ray.scripts.scripts import main

    services.get_node = patient(services.get_node)
    Node.start_ray_client_server = Node.start_api_server = lambda *_, **__: None
    sys.exit(main())
