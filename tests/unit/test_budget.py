"""Lines of Python, by room, and words of documentation are budgets.

Who needs more says what goes for it, and changes the table in that commit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("_pb2.py", "_pb2_grpc.py")

# Room: its folders and files, the most lines, the most files. They fall with what is taken out.
BUDGET: dict[str, tuple[tuple[str, ...], int, int]] = {
    "client": (("client",), 21378, 110),
    "client: endpoint": (("client/moa_client/endpoint",), 2742, 11),
    "client: tools": (("client/moa_client/tools",), 1701, 8),
    "client: link": (("client/moa_client/link",), 1999, 9),
    "client: chat": (("client/moa_client/chat",), 2370, 12),
    "client: conversation, engine, host, surface, daemon": (
        tuple(f"client/moa_client/{name}" for name in ("conversation", "engine", "host", "surface", "daemon")), 5268, 26,
    ),
    "client: device, drafting, memory": (
        tuple(f"client/moa_client/{name}" for name in ("device", "drafting", "memory.py")), 2665, 13,
    ),
    "client: history, web, page, servers, doctor, mcp": (
        tuple(f"client/moa_client/{name}" for name in ("history", "web", "page", "servers", "doctor.py", "mcp")), 3266, 18,
    ),
    "server": (("server",), 13485, 70),
    "shared": (("shared",), 14321, 76),
    "training": (("training",), 4446, 26),
    "bench": (("bench",), 5029, 34),
    "netsim": (("netsim",), 4171, 22),
    "testing": (("testing",), 864, 4),
    "kernels": (("kernels",), 3095, 21),
    "the rest": (("proto", "deploy", "docs", "drafters", "setup.py"), 679, 12),
    "tests": (("tests",), 49855, 260),
}  # fmt: skip
WORDS = {"docs/*.md": 35_000, "docs/measurements/*.md": 12_000, "docs/adr/*.md": 25_000}
LARGEST = 5  # files that are named


def lines_of(places: tuple[str, ...]) -> dict[str, int]:
    """The lines of each file of a room."""
    found = [
        path for place in places for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    ]
    mine = [path for path in found if not path.name.endswith(GENERATED) and "build" not in path.parts]
    return {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in mine}


@pytest.mark.parametrize("room", BUDGET)
def test_rooms_stay_within_their_budgets(room: str) -> None:
    places, most_lines, most_files = BUDGET[room]
    lines = lines_of(places)
    largest = sorted(lines.items(), key=lambda each: -each[1])[:LARGEST]
    assert sum(lines.values()) <= most_lines, f"{room}: its largest files are {largest}"
    assert len(lines) <= most_files, f"{room}: its largest files are {largest}"


@pytest.mark.parametrize("pages", WORDS)
def test_pages_stay_within_their_words(pages: str) -> None:
    words = {path.name: len(path.read_text("utf-8").split()) for path in ROOT.glob(pages)}
    largest = sorted(words.items(), key=lambda each: -each[1])[:LARGEST]
    assert sum(words.values()) <= WORDS[pages], f"{pages}: the largest are {largest}"
