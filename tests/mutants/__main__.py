"""Which planted errors the tests catch: `python -m tests.mutants check [ROOM...]`, and `plant` for another list.

The list is tests/mutants/list.json. A test may go only while every error that was caught stays caught.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.mutants.errors import ROOT, PlantedError, possible

LIST = Path(__file__).with_name("list.json")
EACH = 10  # errors of a room
LONGEST_S = 240.0
SCHEDULES = ("tests/unit/test_schedules.py", "tests/unit/moa_server/test_session_schedules.py")
# Room: its files, and the tests that are asked, the fastest first.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "session": (("server/moa_server/session/session.py",), ("tests/unit/moa_server/session", *SCHEDULES)),
    "verification": (("server/moa_server/session/verification.py",), ("tests/unit/moa_server/session", *SCHEDULES)),
    "conversation": (
        ("client/moa_client/conversation/conversation.py",),
        ("tests/unit/moa_client/conversation", SCHEDULES[0]),
    ),
    "availability": (("client/moa_client/link/availability.py",), ("tests/unit/moa_client/link", SCHEDULES[0])),
    "codecs": (
        ("shared/moa_shared/protocol/memory_codec.py", "shared/moa_shared/protocol/messages.py"),
        ("tests/unit/moa_shared/protocol", "tests/wire"),
    ),
    "coupling": (
        ("shared/moa_shared/sampling/coupling.py", "shared/moa_shared/sampling/scores.py"),
        ("tests/unit/moa_shared/sampling",),
    ),
    "KV pool": (("server/moa_server/engine/registry.py",), ("tests/unit/moa_server/engine/test_registry.py",)),
    "frames": (
        ("shared/moa_shared/protocol/protobuf_messages.py",),
        ("tests/unit/moa_shared/protocol", "tests/wire", SCHEDULES[0]),
    ),
    "keys": (
        ("server/moa_server/access/limits.py", "server/moa_server/access/keys.py"),
        ("tests/unit/moa_server/access", "tests/net/test_server_access.py"),
    ),
    "forms": (
        ("shared/moa_shared/constraints/constrained_text.py",),
        ("tests/unit/moa_shared/constraints", "tests/unit/moa_server/session/test_answers.py"),
    ),
    "tools": (
        tuple(f"client/moa_client/tools/{name}.py" for name in ("tool", "turns", "answer_reader")),
        ("tests/unit/moa_client/tools",),
    ),
    "trees": (("shared/moa_shared/tree.py",), ("tests/unit/moa_shared/test_tree.py", "tests/unit/moa_shared/drafting")),
    "training": (
        tuple(
            f"training/moa_training/{name}.py"
            for name in ("objective/blocks", "objective/moa", "fit/fit", "evaluation/subjects", "evaluation/standalone")
        ),
        tuple(f"tests/unit/moa_training/{name}" for name in ("objective", "evaluation", "fit")),
    ),
}


def plant() -> int:
    """Chooses errors spread over each room, and says which test catches each."""
    chosen = []
    for files, _ in ROOMS.values():
        there_are = list(dict.fromkeys(error for file in files for error in possible(ROOT, file)))
        chosen += sorted(random.Random(1).sample(there_are, min(EACH, len(there_are))), key=there_are.index)
    _write([replace(error, caught_by=catch(error)) for error in chosen])
    return 0


def check(*rooms: str) -> int:
    """Plants every error of the list, or of some rooms, again; the status is 1 if one is caught no more, or has no place."""
    found, worse = [], 0
    files = {file for room in rooms for file in ROOMS[room][0]}
    for error in _read():
        caught_by = error.caught_by
        if not rooms or error.file in files:
            try:
                caught_by = catch(error)
            except (LookupError, FileNotFoundError) as lost:
                print(f"LOST    {lost}", flush=True)
                worse += 1
            if error.caught_by and not caught_by:
                print(f"ESCAPES {error.file}, {error.function}: {error.after}", flush=True)
                worse += 1
        found.append(replace(error, caught_by=caught_by))
    _write(found)
    return 1 if worse else 0


def catch(error: PlantedError) -> str:
    """The test that fails with the error planted, or "a hang"; empty: none does. Its own test is asked first."""
    error.plant(ROOT)  # that there is a place for it
    tests = next(tests for files, tests in ROOMS.values() if error.file in files)
    return (error.caught_by and _fails(error, error.caught_by)) or _fails(error, *tests)


def _fails(error: PlantedError, *tests: str) -> str:
    words = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "tests.mutants.plugin", "--hypothesis-seed=0"]
    environment = {**os.environ, "MOA_MUTANT": json.dumps(asdict(error)), "MOA_SCHEDULES": "100"}
    try:
        done = subprocess.run(
            [*words, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "a hang"
    if done.returncode == 0 or (tests == (error.caught_by,) and "not found: " in done.stderr):  # it went, or moved
        return ""
    named = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", done.stdout, re.MULTILINE)
    if named is None:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return named[1]


def _read() -> list[PlantedError]:
    return [PlantedError(**each) for each in json.loads(LIST.read_text("utf-8"))]


def _write(errors: Sequence[PlantedError]) -> None:
    LIST.write_text("[\n" + ",\n".join(json.dumps(asdict(each)) for each in errors) + "\n]\n", "utf-8")
    caught = sum(bool(each.caught_by) for each in errors)
    print(f"{caught} of {len(errors)} planted errors are caught")


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        sys.exit(check(*sys.argv[2:]))
    sys.exit(plant() if sys.argv[1:] == ["plant"] else __doc__)
