"""The packet backend: two network namespaces with a TUN device in each, and what carries packets between the devices.

It reads IP packets from one device, asks the link model, and writes them to the other when due. Release times never go
back within a direction, so a queue and one timer each are enough. Each pair of namespaces is named after its process
and guarded by a locked file, so that what a killed run left can be told from what is in use, even when a process number
is reused. Invariant: the lock is held before the first namespace exists.
"""

import ctypes
import fcntl
import itertools
import os
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from netsim.core.link import Direction, Release
from netsim.errors import NetsimError, PrivilegeError, UsageError
from netsim.profiles import Scenario
from netsim.recorder import RunRecorder
from netsim.run.control import environment
from netsim.run.loop import Address, Loop
from netsim.run.packet import FIN, RST, FlowTable, Forged, is_tcp, payload_bytes
from netsim.run.session import Backend

LOCKS = Path("/run/netsim")
NAMESPACES = Path("/run/netns")  # where iproute2 keeps named ones
PREFIX = "netsim-"
DEVICE = "link0"
# A pair of addresses of the range set aside for benchmarks (RFC 2544): no real network has them.
CLIENT_ADDRESS, SERVER_ADDRESS = "198.18.0.1", "198.18.0.2"
LINK_TABLE = 100  # routing table of what goes over the link though it is addressed to loopback

_CLONE_NEWNET, _TUNSETIFF = 0x40000000, 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000  # plain IP packets, no header before them
_counter = itertools.count()


def require_root() -> None:
    """Raises PrivilegeError, which names the other backend."""
    if os.geteuid() != 0:
        raise PrivilegeError(
            "The tun backend needs root: it makes network namespaces.",
            hint="Run it as root, or use --backend proxy, which needs no privileges and is approximate.",
        )
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise PrivilegeError(
            "The tun backend needs /dev/net/tun, which does not exist here.",
            hint="In a container, pass the device in (--device /dev/net/tun --cap-add NET_ADMIN,SYS_ADMIN), or use "
            "--backend proxy.",
        )


class NamespacePair:
    """The client's and the server's namespaces; owns both, their devices and the lock."""

    def __init__(self, congestion: str, port: int) -> None:
        require_root()
        name = f"{PREFIX}{os.getpid()}-{next(_counter)}"
        self.client, self.server = f"{name}-client", f"{name}-server"
        self._lock_path = LOCKS / f"{name}.lock"
        self._fds: list[int] = []
        LOCKS.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self.client_fd = self._make(self.client, CLIENT_ADDRESS, SERVER_ADDRESS, congestion)
            self.server_fd = self._make(self.server, SERVER_ADDRESS, CLIENT_ADDRESS, congestion)
            # A command that connects to loopback's port must reach the server too. Without these rules the table of
            # local addresses would be asked first.
            _ip(
                f"rule add pref 10 to 127.0.0.1 ipproto tcp dport {port} lookup {LINK_TABLE}\n"
                "rule add pref 100 lookup local\n"
                "rule del pref 0 lookup local\n"
                f"route add 127.0.0.1 dev {DEVICE} src {CLIENT_ADDRESS} table {LINK_TABLE} congctl {congestion}\n",
                self.client,
            )
        except BaseException:
            self.close()
            raise

    def _make(self, name: str, own: str, other: str, congestion: str) -> int:
        _ip(f"netns add {name}\n")
        with inside(name):
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self._fds.append(fd)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_PI))
            for setting in (
                "ipv6/conf/all/disable_ipv6",  # no router solicitations among the packets
                "ipv4/conf/all/route_localnet",  # loopback's address may come in over the link
                "ipv4/tcp_no_metrics_save",  # one connection's threshold must not shape the next
            ):
                with suppress(FileNotFoundError):  # a kernel without IPv6
                    Path("/proc/sys/net", setting).write_text("1")
        _ip(
            "link set lo up\n"
            f"addr add {own} peer {other} dev {DEVICE}\n"
            f"link set {DEVICE} mtu 1500 up\n"
            f"route replace {other} dev {DEVICE} congctl {congestion}\n",
            name,
        )
        return fd

    def close(self) -> None:
        """Removes everything; may be called twice."""
        while self._fds:
            os.close(self._fds.pop())
        for name in (self.client, self.server):
            if (NAMESPACES / name).exists():
                _ip(f"netns del {name}\n")
        if self._lock >= 0:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Moves the calling thread into the namespace for the block; what it opens stays there. Raises NetsimError."""
    with ExitStack() as stack:
        home = stack.enter_context(open("/proc/thread-self/ns/net"))
        try:
            there = stack.enter_context((NAMESPACES / name).open())
        except OSError as error:
            raise NetsimError(f"Namespace {name} cannot be entered: {error.strerror}.") from error
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(home.fileno())


def socket_inside(name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket that belongs to the namespace, whoever uses it."""
    with inside(name):
        return socket.socket(socket.AF_INET, kind)


def clean_leftovers() -> list[str]:
    """Removes the namespaces of runs that are gone; returns their names."""
    removed = []
    for path in sorted(NAMESPACES.glob(f"{PREFIX}*")) if NAMESPACES.exists() else []:
        lock_path = LOCKS / f"{path.name.rsplit('-', 1)[0]}.lock"
        if _held(lock_path):
            continue
        _ip(f"netns del {path.name}\n")
        removed.append(path.name)
    for lock_path in LOCKS.glob(f"{PREFIX}*.lock") if LOCKS.exists() else []:
        if not _held(lock_path):
            lock_path.unlink(missing_ok=True)
    return removed


def _held(lock_path: Path) -> bool:
    try:
        with lock_path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (PermissionError, BlockingIOError):  # another user's, who removes it, or in use
        return True
    return False


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NetsimError(f"The network namespace cannot be changed: {os.strerror(ctypes.get_errno())}.")


def _ip(batch: str, namespace: str | None = None) -> None:
    """Runs lines of iproute2; raises NetsimError with what it said."""
    command = ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"]
    try:
        done = subprocess.run(command, input=batch, capture_output=True, text=True, check=False, timeout=20)
    except FileNotFoundError:
        raise NetsimError("The program `ip` is missing.", hint="Install iproute2, or use --backend proxy.") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise NetsimError(
            f"The namespaces cannot be set up: {said}", hint="`netsim clean` removes what killed runs left."
        )


READ_BATCH = 32  # packets a turn: enough to keep up, few enough not to make a due release wait (0.2 ms)


class TunBackend(Backend):
    name = "tun"

    def __init__(
        self, loop: Loop, scenario: Scenario, recorder: RunRecorder, port: int, upstream: Address | None = None
    ) -> None:
        super().__init__(loop, scenario, recorder)
        self.port = port
        self.leftovers = clean_leftovers()
        self.namespaces = NamespacePair(scenario.profile.congestion, port)
        # What to put before a command to run it at the client's or the server's end.
        self.command_prefix = ("ip", "netns", "exec", self.namespaces.client)
        self.server_prefix = ("ip", "netns", "exec", self.namespaces.server)
        self._congestion = scenario.profile.congestion
        self._flows = FlowTable()
        self._queues: dict[Direction, deque[tuple[float, bytes]]] = {direction: deque() for direction in Direction}
        self._armed = dict.fromkeys(Direction, False)  # whether a timer is set
        self._entries = {Direction.UP: self.namespaces.client_fd, Direction.DOWN: self.namespaces.server_fd}
        self._exits = {Direction.UP: self.namespaces.server_fd, Direction.DOWN: self.namespaces.client_fd}
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._upstream = upstream
        try:
            if upstream is not None:
                self._forward(upstream)
        except BaseException:
            self.close()
            raise
        for direction in Direction:
            loop.read(self._entries[direction], lambda direction=direction: self._read(direction))  # type: ignore[misc]

    def _forward(self, upstream: Address) -> None:
        listener = socket_inside(self.namespaces.server)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("0.0.0.0", self.port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise UsageError(f"Port {self.port} is not free in the server's namespace: {error.strerror}.") from error
        fd = listener.fileno()
        self._forwarder = subprocess.Popen(
            [sys.executable, "-P", "-m", "netsim.run.proxy", str(fd), str(upstream)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,  # closes when we end, however we end: the forwarder then ends too
            stdout=subprocess.PIPE,
            env=environment(),
        )
        listener.close()
        if self._forwarder.stdout is not None and not self._forwarder.stdout.readline():
            raise UsageError(f"Connections cannot be forwarded to {upstream}: the forwarder ended at its start.")

    def _read(self, direction: Direction) -> None:
        fd, link, queue, flows = self._entries[direction], self.links[direction], self._queues[direction], self._flows
        records = self.recorder.records_packets
        for _ in range(READ_BATCH):
            try:
                packet = os.read(fd, 65536)
            except BlockingIOError:
                return
            if is_tcp(packet):
                if flows.watching:
                    enters, answers = flows.intercept(direction, packet)
                    self._deliver(answers)
                    if not enters:
                        continue
                flows.note(direction, packet)
                if records and direction is Direction.UP and (length := payload_bytes(packet)):
                    # A connection is known by the client's port.
                    self.recorder.question(int.from_bytes(packet[20:22], "big"), self.loop.time(), packet[-length:])
            verdict = link.admit(len(packet), self.loop.time())
            if isinstance(verdict, Release):
                queue.append((verdict.t, packet))
                if not self._armed[direction]:
                    self._arm(direction)

    def _arm(self, direction: Direction) -> None:
        self._armed[direction] = True
        self.loop.call_at(self._queues[direction][0][0], lambda: self._release(direction))

    def _release(self, direction: Direction) -> None:
        queue, fd, lateness = self._queues[direction], self._exits[direction], self.recorder.lateness
        flows = self._flows
        self._armed[direction] = False
        records, now = self.recorder.records_packets, self.loop.time()
        while queue:
            due, packet = queue[0]
            if due > now:
                now = self.loop.time()
                if due > now:
                    self._arm(direction)
                    return
            queue.popleft()
            if flows.watching and is_tcp(packet) and flows.ended(packet):
                continue
            lateness.add(now - due)
            os.write(fd, packet)
            if records and direction is Direction.DOWN and is_tcp(packet) and payload_bytes(packet):
                self.recorder.answer(int.from_bytes(packet[22:24], "big"), now)

    def _deliver(self, forged: Sequence[Forged]) -> None:
        for direction, packet in forged:
            os.write(self._exits[direction], packet)

    def endpoint(self) -> str:
        return f"{SERVER_ADDRESS}:{self.port}"

    def facts(self) -> dict[str, Any]:
        return {
            "congestion_control": self._congestion,
            "namespaces": {"client": self.namespaces.client, "server": self.namespaces.server},
            "addresses": {"client": CLIENT_ADDRESS, "server": SERVER_ADDRESS},
            "upstream": None if self._upstream is None else str(self._upstream),
        }

    def connections(self) -> int:
        return len(self._flows.open_flows())

    def on_cut(self, direction: Direction, t: float) -> None:
        self._queues[direction].clear()

    def reset(self) -> int:
        return self._end(RST)

    def fin(self) -> int:
        return self._end(FIN)

    def _end(self, flag: int) -> int:
        count, forged = self._flows.end_all(flag)
        self._deliver(forged)
        return count

    def refuse(self, refusing: bool) -> None:
        self._flows.refusing = refusing

    def close(self) -> None:
        if self._forwarder is not None:
            with self._forwarder:
                self._forwarder.terminate()
            self._forwarder = None
        for fd in self._entries.values():
            self.loop.read(fd, None)
        self.namespaces.close()
