"""A Ray cluster of this machine alone: Ray's own head process, which lives until `cluster down`.

State: a file that says where it is, and its token, without which nobody may use it. Invariant: only processes that were
started here are ever ended: those of the session that its head began. Does not import Ray, which reads the environment
when it is imported.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moa_shared.errors import UnavailableError
from moa_shared.programs.atomic import whole_file

START_SECONDS = 90.0
END_SECONDS = 90.0
KILL_SECONDS = 20.0
STORE_BYTES = 100 * 1024 * 1024  # nothing of ours goes through Ray's object store; the least that it takes is 75 MB
POLL_SECONDS = 0.2
# By itself Ray takes fixed ports, which another Ray of this machine may have; or it waits for 15 s until its agents say
# which they took, and gives up on a busy machine.
PORTS = ("ray-client-server", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
STARTED = b"Ray runtime started"
OURS = ("MOA_KEYS", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class LocalRay:
    """The head that was started.

    Args:
        address: HOST:PORT of Ray's head.
        process: id of the process whose end ends all; `began`: when, so that no other is mistaken for it. All processes
            of this Ray are of its session.
        folder: of its sockets, logs and token.
    """

    address: str
    process: int
    began: str
    folder: str

    @property
    def is_alive(self) -> bool:
        return _began(self.process) == self.began

    def processes(self) -> list[int]:
        """All that run, of those that this head has started."""
        if _began(self.process) not in ("", self.began):  # its id is another's now, so its session has ended
            return []
        return session_processes(self.process)

    @property
    def log(self) -> Path:
        """What the head's process says."""
        return Path(self.folder) / "head.log"

    def environment(self) -> dict[str, str]:
        """What Ray must find in the environment to be let in."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(self.folder) / "token")}


def state_file() -> Path:
    """Where the head is remembered."""
    import platformdirs

    return platformdirs.user_state_path("moa", appauthor=False) / "cluster.json"


def find_local() -> LocalRay | None:
    """The Ray that was started here last, whether it runs or not; None: there is none, or it was taken down."""
    try:
        return LocalRay(**json.loads(state_file().read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def start_local(cpus: int) -> LocalRay:
    """Starts a head.

    Args:
        cpus: that Ray may give to replicas.

    Raises:
        UnavailableError: Ray does not start.
    """
    try:
        head = _try_to_start(cpus)
    except UnavailableError:  # Ray gives its own parts 30 s, which are short on a busy machine
        head = _try_to_start(cpus)
    path = state_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(asdict(head)), "utf-8")
    return head


def end_local(head: LocalRay) -> None:
    """Ends a head, if it has not ended by itself, and all that it has started.

    Raises:
        UnavailableError: it does not end.
    """
    if head.is_alive:
        _signal(head.process, signal.SIGTERM)
        _wait_until(lambda: not head.is_alive, END_SECONDS)
    for process in head.processes():  # Ray's agents outlive a head that was killed by half a minute
        _signal(process, signal.SIGKILL)
    if not _wait_until(lambda: not head.processes(), KILL_SECONDS):
        left = ", ".join(map(str, head.processes()))
        raise UnavailableError(f"Ray's processes have not ended: {left}.", hint=f"Look at {head.log}.")
    state_file().unlink(missing_ok=True)
    shutil.rmtree(head.folder, ignore_errors=True)


def _try_to_start(cpus: int) -> LocalRay:
    folder = Path(tempfile.mkdtemp(prefix="moa-ray-"))  # short: Ray's sockets lie below, and only the user may enter
    address = f"127.0.0.1:{free_port()}"
    head = LocalRay(address, 0, "", str(folder))
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--port={address.rpartition(':')[2]}", f"--num-cpus={cpus}", f"--object-store-memory={STORE_BYTES}",
        "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}",
        *(f"--{name}-port={free_port()}" for name in PORTS),
    ]  # fmt: skip
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), "utf-8")  # whoever may use Ray may run programs here, and its port is open
    inherited = {name: value for name, value in os.environ.items() if name not in OURS}
    with head.log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**inherited, **head.environment()}, start_new_session=True,
        )  # fmt: skip
    head = replace(head, process=process.pid, began=_began(process.pid))
    deadline = time.monotonic() + START_SECONDS
    while STARTED not in head.log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            _signal(head.process, signal.SIGTERM)
            raise UnavailableError("Ray has not started.", hint=f"Look at {head.log}.")
        time.sleep(POLL_SECONDS)
    return head


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to be so in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _began(process: int) -> str:
    """When a process began, in ticks since the machine did; empty: there is none, or it has ended."""
    fields = _status(process)
    return fields[19] if fields else ""


def _session(process: int) -> int:
    """The id of the process that began its session; 0: there is none, or it has ended."""
    fields = _status(process)
    return int(fields[3]) if fields else 0


def _status(process: int) -> list[str]:
    """The fields of /proc/PID/stat from its state on; none: there is no such process, or it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def session_processes(leader: int) -> list[int]:
    """All that run in the session that a process began."""
    all_of_this_machine = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in all_of_this_machine if _session(process) == leader]


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
