"""A link in a process of its own, started and stopped from Python."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from netsim.errors import NetsimError
from netsim.output.recorder import EVENTS, SUMMARY
from netsim.run import control
from netsim.run.address import Address, parse_address

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.01


class LinkProcess:
    """A link running as a process. `scratch` is a folder for its ready file, control socket and standard error."""

    def __init__(self, command: str, words: Sequence[str], out: Path | None, scratch: Path) -> None:
        self.control_path = scratch / "control.sock"
        self.out = out
        self._ready = scratch / "ready"
        self._said = scratch / "stderr"
        outputs = [] if out is None else ["--out", str(out)]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "netsim.cli", command, *outputs, "--control", str(self.control_path),
                    "--ready-file", str(self._ready), *words,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=environment(),
            )  # fmt: skip

    def await_ready(self) -> None:
        """Waits until the link carries traffic; raises NetsimError with what netsim said if it does not open."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self.process.poll() is not None:
                said = self._said.read_text().removeprefix("netsim: ").strip()
                raise NetsimError(f"The link did not open: {said}")
            if time.monotonic() > deadline:
                raise NetsimError(f"The link did not open within {START_TIMEOUT_S:.0f} s.")
            time.sleep(_POLL_S)

    def address(self) -> Address:
        """Where clients connect to."""
        return parse_address(self._ready.read_text().strip(), "link")

    def send(self, **request: Any) -> dict[str, Any]:
        """One request over the control socket."""
        return control.send(self.control_path, request)

    def stop(self) -> None:
        """Ends the process and waits for it; its outputs are complete then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """Our environment, with the folder that netsim was imported from: a checkout may not be installed."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class LinkHandle:
    """A running link. Its methods return when the link has done what was asked."""

    def __init__(self, address: Address, control_path: Path, out: Path) -> None:
        self.address = address
        self.out = out
        self._control = control_path

    @property
    def target(self) -> str:
        """HOST:PORT that clients connect to."""
        return str(self.address)

    async def _send(self, **request: Any) -> dict[str, Any]:
        return await asyncio.to_thread(control.send, self._control, request)

    async def command_prefix(self) -> list[str]:
        """What to put before a command to run it at the client's end of a tun link; empty for a proxy."""
        namespaces = (await self.status()).get("namespaces")
        return ["ip", "netns", "exec", namespaces["client"]] if namespaces else []

    async def cut(self, direction: str = "both", seconds: float | None = None) -> None:
        """Loses everything, until healed or for a time."""
        await self._send(do="cut", direction=direction, seconds=seconds)

    async def hold(self, direction: str = "both", seconds: float | None = None) -> None:
        """Keeps everything waiting, until healed or for a time."""
        await self._send(do="hold", direction=direction, seconds=seconds)

    async def heal(self) -> None:
        """Ends every cut, hold and refusal."""
        await self._send(do="heal")

    async def reset(self) -> None:
        """Ends every connection with a reset."""
        await self._send(do="reset")

    async def fin(self) -> None:
        """Ends every connection in the orderly way."""
        await self._send(do="fin")

    async def refuse(self, seconds: float | None = None) -> None:
        """Refuses new connections, until healed or for a time."""
        await self._send(do="refuse", seconds=seconds)

    async def set(
        self, *, profile: str | None = None, ramp_s: float = 0.0, direction: str = "both", **settings: float
    ) -> None:
        """Becomes another profile, or changes rate_mbps, delay_ms, deviation_ms, loss, queue_kib."""
        await self._send(do="set", settings=settings, profile=profile, ramp_s=ramp_s, direction=direction)

    async def status(self) -> dict[str, Any]:
        """What the link is like now."""
        return await self._send(do="status")

    def summary(self) -> dict[str, Any]:
        """summary.json; exists once the block has ended."""
        content: dict[str, Any] = json.loads((self.out / SUMMARY).read_text())
        return content

    def events(self) -> list[dict[str, Any]]:
        """events.jsonl; complete once the block has ended."""
        return [json.loads(line) for line in (self.out / EVENTS).read_text().splitlines()]


@asynccontextmanager
async def open_link(
    profile: str,
    *,
    upstream: str,
    seed: int = 0,
    backend: Literal["proxy", "tun"] = "proxy",
    events: Sequence[str] = (),
    trace: Path | None = None,
    loop_trace: bool = False,
    out: Path | None = None,
) -> AsyncIterator[LinkHandle]:
    """Opens a link before `upstream` (HOST:PORT) and closes it with the block.

    `events` are of the form `12:blackhole:3`; `trace` drives the link, and the profile fills in what it leaves blank.
    Outputs go to `out`, or to a folder that is removed when the block ends. Raises NetsimError with what netsim said
    if the link does not open.
    """
    with tempfile.TemporaryDirectory(prefix="netsim-") as scratch:
        kept = out or Path(scratch) / "out"
        words = ["--profile", profile, "--seed", str(seed), "--backend", backend, "--upstream", upstream]
        words += [word for event in events for word in ("--event", event)]
        words += (["--loop"] if loop_trace else []) + ([str(trace)] if trace is not None else [])
        process = LinkProcess("run" if trace is None else "replay", words, kept, Path(scratch))
        try:
            await asyncio.to_thread(process.await_ready)
            yield LinkHandle(process.address(), process.control_path, kept)
        finally:
            # Not to_thread: the process must end even when the block was cancelled.
            process.stop()
