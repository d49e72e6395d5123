"""Writes tables of options and companions into docs/ from the code; --check fails where one is stale."""

import sys
from pathlib import Path

from moa_bench.report import with_section
from moa_client.settings import ClientSettings
from moa_server.catalogue import catalogue_table
from moa_server.listing import known_table
from moa_server.settings import ServerSettings
from moa_shared.drafter.companion import KNOWN_COMPANIONS
from moa_shared.programs.command_line import options_table

COMPANIONS = ["| companion | million weights | for | licence |", "| --- | ---: | --- | --- |"]
COMPANIONS += ["| `{hub}` | {millions} | {targets} | {licence} |".format_map(each) for each in KNOWN_COMPANIONS]
DOCS = Path(__file__).resolve().parent
TABLES = (
    ("client.md", "options moa-client", options_table(ClientSettings)),
    ("server.md", "options moa-server", options_table(ServerSettings)),
    ("models.md", "catalogue", catalogue_table()),
    ("drafters.md", "known drafters", known_table()),
    ("drafters.md", "companions", "\n".join(COMPANIONS)),
)


def main() -> None:
    stale = []
    for name, section, table in TABLES:
        page = DOCS / name
        fresh = with_section(page, section, table)
        if fresh != page.read_text("utf-8"):
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                page.write_text(fresh, "utf-8")
    if stale and "--check" in sys.argv[1:]:
        raise SystemExit(f"Stale tables: {', '.join(stale)}. Run `make docs` and commit the result.")


if __name__ == "__main__":
    main()
