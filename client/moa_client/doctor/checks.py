"""What was found about all servers, for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from moa_shared.programs.checks import Check, check_fields


def checks_json(checks: dict[str, Sequence[Check]]) -> str:
    """All steps of all servers, by the server's address."""
    servers = [{"server": server, "checks": list(map(check_fields, steps))} for server, steps in checks.items()]
    return json.dumps(servers, indent=2) + "\n"
