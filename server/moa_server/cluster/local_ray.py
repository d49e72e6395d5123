"""A Ray cluster of this machine alone: Ray's own head process, which lives until `cluster down`.

State: a file that says where it is, and its token, without which it cannot be used. Invariants: only processes that
were started here are ever ended: those of the session that its head began. Only this machine reaches it, and its other
users reach none of its files. Does not import Ray, which reads the environment when it is imported.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moa_shared.errors import UnavailableError
from moa_shared.programs.addresses import host_of, is_loopback
from moa_shared.programs.atomic import whole_file
from moa_shared.text.plain_text import plain_line

from moa_server.cluster.processes import began as began_at
from moa_server.cluster.processes import listening, name_of, send_signal, session_processes

START_SECONDS = 180.0  # of a head on a busy machine; 8 s on one that is idle
TRIES = 2
SAY_SECONDS = 15.0  # between lines that say what a start waits for
END_SECONDS = 90.0
KILL_SECONDS = 20.0
STORE_BYTES = 100 * 1024 * 1024  # nothing of ours goes through Ray's object store; the least that it takes is 75 MB
POLL_SECONDS = 0.2
# By itself Ray takes fixed ports, which another Ray of this machine may have; or it waits for 15 s until its agents say
# which they took, and gives up on a busy machine.
PORTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
# What asks a cloud for nodes, and what sends the workers' logs to drivers: nothing here needs them.
WITHOUT = ("--no-monitor", "--include-log-monitor=false")
STARTED = b"Ray runtime started"
HERE = "127.0.0.1"
# Ray replaces an address of loopback by the machine's own, unless it is told that there is to be no cluster of several
# machines; then all of its parts listen at loopback. The variable is named after systems on which that is so anyway.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# What Ray's parts wait for each other, 30 s by itself, which are short on a busy machine.
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_agent_register_timeout_ms": "120000"}
# By itself Ray runs workers at nice 15, as batch work. People wait for replicas.
PRIORITY = {"RAY_worker_niceness": "0"}
# The parts of Ray's head in the order in which they start, and what they do.
PARTS = {"gcs_server": "its control store", "raylet": "its scheduler"}
SECRET = stat.S_IRWXG | stat.S_IRWXO  # what others may do with our files: nothing
OURS = ("MOA_KEYS", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class LocalRay:
    """The head that was started.

    Args:
        address: HOST:PORT of Ray's head.
        process: id of the process whose end ends all; `began`: when, so that no other is mistaken for it. All processes
            of this Ray are of its session.
        folder: of its token and log, which only its user may enter; Ray's own folder, which Ray opens to all, is below.
    """

    address: str
    process: int
    began: str
    folder: str

    @property
    def is_alive(self) -> bool:
        return began_at(self.process) == self.began

    def processes(self) -> list[int]:
        """All that run, of those that this head has started."""
        if began_at(self.process) not in ("", self.began):  # its id is another's now, so its session has ended
            return []
        return session_processes(self.process)

    @property
    def log(self) -> Path:
        """What the head's process says."""
        return Path(self.folder) / "head.log"

    @property
    def token(self) -> Path:
        """The file of the token."""
        return Path(self.folder) / "token"

    def environment(self) -> dict[str, str]:
        """What Ray must find in the environment to be let in."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token), **LOOPBACK}


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


def start_local(cpus: int, say: Callable[[str], None]) -> LocalRay:
    """Starts a head.

    Args:
        cpus: that Ray may give to replicas.
        say: shows the user one line, while it takes long.

    Raises:
        UnavailableError: Ray does not start, or is open to others.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            head = _try_to_start(cpus, say)
            break
        except UnavailableError as error:
            if not tries_left:
                raise
            say(f"{error.message} Trying again.")
    try:
        path = state_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_text(json.dumps(asdict(head)), "utf-8")
    except BaseException:
        _discard(head)
        raise
    return head


def end_local(head: LocalRay) -> None:
    """Ends a head, if it has not ended by itself, and all that it has started.

    Raises:
        UnavailableError: it does not end.
    """
    if head.is_alive:
        send_signal(head.process, signal.SIGTERM)
        _wait_until(lambda: not head.is_alive, END_SECONDS)
    if not _kill_all(head):
        left = ", ".join(map(str, head.processes()))
        raise UnavailableError(f"Ray's processes have not ended: {left}.", hint=f"Look at {head.log}.")
    state_file().unlink(missing_ok=True)
    shutil.rmtree(head.folder, ignore_errors=True)


def _try_to_start(cpus: int, say: Callable[[str], None]) -> LocalRay:
    folder = tempfile.mkdtemp(prefix="moa-ray-")  # 0700, and short: Ray's sockets lie below
    head = LocalRay(f"{HERE}:{free_port()}", 0, "", folder)
    token = secrets.token_hex(32)
    process: subprocess.Popen[bytes] | None = None
    try:
        head.token.touch(mode=0o600)
        head.token.write_text(token, "utf-8")  # a user of Ray can run programs here
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        with head.log.open("wb") as out:
            process = subprocess.Popen(
                _command(head, cpus), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={**PRIORITY, **inherited, **PATIENCE, **head.environment()}, start_new_session=True,
            )  # fmt: skip
        head = replace(head, process=process.pid, began=began_at(process.pid))
        _await_start(head, process, say)
        _check_closed(head, token)
    except BaseException:
        _discard(head)
        if process is not None:
            process.wait()
        raise
    return head


def _command(head: LocalRay, cpus: int) -> list[str]:
    return [
        sys.executable, "-m", "moa_server.cluster.ray_head", "start", "--head", "--block", f"--node-ip-address={HERE}",
        f"--port={head.address.rpartition(':')[2]}", f"--num-cpus={cpus}", f"--object-store-memory={STORE_BYTES}",
        "--include-dashboard=false", "--disable-usage-stats", *WITHOUT, f"--temp-dir={head.folder}/ray",
        *(f"--{name}-port={free_port()}" for name in PORTS),
    ]  # fmt: skip


def _await_start(head: LocalRay, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Waits until a head runs, and says for what.

    Raises:
        UnavailableError: it has ended, or takes too long.
    """
    began = said = time.monotonic()
    while STARTED not in head.log.read_bytes():
        now = time.monotonic()
        if process.poll() is not None or now - began > START_SECONDS:
            why = f"it ended with code {process.returncode}" if process.returncode is not None else _awaited(head)
            words = f" Its last words: {last.rstrip('.')}." if (last := _last_line(head.log)) else ""
            raise UnavailableError(
                f"Ray has not started: {why}.{words}", hint="Try again when this machine is less busy."
            )
        if now - said > SAY_SECONDS:
            said = now
            say(f"Ray has been starting for {now - began:.0f} s: {_awaited(head)}.")
        time.sleep(POLL_SECONDS)


def _awaited(head: LocalRay) -> str:
    """What a head that starts waits for, in words."""
    running = {name_of(process) for process in head.processes()}
    part = next((f"{what} ({name})" for name, what in PARTS.items() if name not in running), "its agents")
    return f"it waits for {part}"


def _check_closed(head: LocalRay, token: str) -> None:
    """Checks that no other user could have changed the token, and that Ray cannot be reached from elsewhere.

    Raises:
        UnavailableError: that is possible.
    """
    for path in (Path(head.folder), head.token):
        found = path.lstat()
        if found.st_uid != os.getuid() or found.st_mode & SECRET:
            raise UnavailableError(f"Others have access to {path} now.", hint="Set TMPDIR to a folder of your own.")
    if head.token.read_text("utf-8") != token:
        raise UnavailableError(f"Somebody has changed {head.token}.", hint="Set TMPDIR to a folder of your own.")
    if exposed := [address for address in listening(head.processes()) if not is_loopback(host_of(address))]:
        raise UnavailableError(
            f"Ray listens at {', '.join(exposed)}, where other machines reach it.",
            hint="Use the Ray that moa's extra `cluster` installs, or start one yourself and name it (--address).",
        )


def _last_line(log: Path) -> str:
    """The last line of a log, for a message; empty: there is none."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return plain_line(lines[-1].strip(), 200) if lines else ""


def _discard(head: LocalRay) -> None:
    """Removes all of a head that has not started."""
    if head.process:
        _kill_all(head)
    shutil.rmtree(head.folder, ignore_errors=True)


def _kill_all(head: LocalRay) -> bool:
    """Kills what a head has started; whether all has ended. Ray's agents outlive a head by half a minute."""
    for process in head.processes():
        send_signal(process, signal.SIGKILL)
    return _wait_until(lambda: not head.processes(), KILL_SECONDS)


def _wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether it came to be so in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def free_port() -> int:
    """A port that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
