"""Writes the server's settings into the chart's values.schema.json from the code; --check fails where it is not fresh.

Helm then refuses a setting that there is not, or a value that the server would refuse, before anything is installed.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from moa_server.settings import ServerSettings
from moa_shared.programs.config import Setting, settings_of

SCHEMA = Path(__file__).resolve().parent / "moa/values.schema.json"
LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
KINDS = {bool: "boolean", int: "integer", float: "number"}
# What the chart sets itself, from values of its own.
OWN = {
    "model", "host", "port", "tls_cert", "tls_key", "tls_client_ca", "insecure", "keys_file", "grace_seconds",
    "metrics_host", "metrics_port", "cache_dir", "ready_file", "advertise", "peers",
}  # fmt: skip


def schema_of(about: Setting) -> dict[str, Any]:
    """What values of one setting look like."""
    described: dict[str, Any] = {"description": about.text}
    if get_origin(about.kind) is Literal:
        return described | {"enum": [*get_args(about.kind)]}
    kinds = get_args(about.kind) or (about.kind,)
    name = next((KINDS[kind] for kind in kinds if kind in KINDS), "string")
    limits = {LIMITS[limit]: value for limit, value in about.limits.items()}
    if name == "number":  # helm takes 0.5 after --set for a text
        return described | {"type": [name, "string"], "pattern": r"^[0-9]*\.?[0-9]+$"} | limits
    return described | {"type": name} | limits


def fresh_schema() -> str:
    """The text of the file as it should be."""
    document = json.loads(SCHEMA.read_text("utf-8"))
    known = settings_of(ServerSettings)
    document["properties"]["settings"]["properties"] = {
        name: schema_of(about) for name, about in known.items() if name not in OWN
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    fresh = fresh_schema()
    if fresh == SCHEMA.read_text("utf-8"):
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit("The chart's values.schema.json is stale. Run `make docs` and commit the result.")
    SCHEMA.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
