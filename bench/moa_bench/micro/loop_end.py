"""`python -m moa_bench.micro.loop_end`: one end of a stream of frames over gRPC, on an event loop of one's choice.

The server sends every frame back. The client keeps some frames in flight and prints what it found as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import click
import grpc
import numpy as np
from moa_shared.errors import ConfigError
from netsim.run.loop import Loop

ASYNCIO, UVLOOP, NETSIM = "asyncio", "uvloop", "netsim"
ECHO, CPU = "/moa.bench/Echo", "/moa.bench/Cpu"
SIZES = (100, 2048)  # a draft or verdict; a chunk of memory rows
WINDOWS = (1, 32)  # in flight: one at a time shows the round trip, many the throughput
TIMERS_S = (0.0005, 0.0035)  # neither whole milliseconds nor shorter than what both loops can tell apart
WARM_UP_FRAMES = 200


@dataclass(frozen=True, slots=True)
class Stream:
    """What frames cost.

    Args:
        frame_bytes: of each frame, which comes back as it is.
        in_flight: frames that are sent before the first is back.
        round_trips_s: frames that came back in a second.
        client_us, server_us: CPU time of each process for each of them, all threads.
    """

    frame_bytes: int
    in_flight: int
    round_trips_s: float
    client_us: float
    server_us: float


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late timers are, in milliseconds; below 0: early."""

    least_ms: float
    median_ms: float
    p99_ms: float


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes loops of this kind.

    Raises:
        ConfigError: uvloop is not installed.
    """
    if name == ASYNCIO:
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        raise ConfigError("uvloop is not installed.", hint="pip install uvloop.") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(name: str, main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        return runner.run(main)


async def _echo(frames: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    async for frame in frames:
        yield frame


async def _cpu(request: bytes, context: object) -> bytes:
    return repr(time.process_time()).encode()


async def serve(ready: Callable[[str], object]) -> None:
    """Sends frames back until the process is ended; tells its address when it begins."""
    server = grpc.aio.server()
    handlers = {
        "Echo": grpc.stream_stream_rpc_method_handler(_echo),
        "Cpu": grpc.unary_unary_rpc_method_handler(_cpu),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("moa.bench", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(f"127.0.0.1:{port}\n")
    await server.wait_for_termination()


async def stream(address: str, seconds: float) -> list[Stream]:
    """Each size of frame with each number of frames in flight."""
    async with grpc.aio.insecure_channel(address) as channel:
        return [await _stream(channel, size, window, seconds) for size in SIZES for window in WINDOWS]


async def _stream(channel: grpc.aio.Channel, size: int, window: int, seconds: float) -> Stream:
    server_cpu = channel.unary_unary(CPU, None, None)
    call = channel.stream_stream(ECHO, None, None)(None)
    frame = bytes(size)

    async def exchange(until: Callable[[int], bool]) -> int:
        for _ in range(window):
            await call.write(frame)
        back = 0
        while not until(back):
            await call.read()
            back += 1
            await call.write(frame)
        for _ in range(window):
            await call.read()
        return back + window

    await exchange(lambda back: back >= WARM_UP_FRAMES)
    server_before, before, began = float(await server_cpu(b"")), time.process_time(), time.monotonic()
    frames = await exchange(lambda back: time.monotonic() - began >= seconds)
    took, client, server = time.monotonic() - began, time.process_time() - before, float(await server_cpu(b""))
    await call.done_writing()
    return Stream(size, window, frames / took, 1e6 * client / frames, 1e6 * (server - server_before) / frames)


async def sleep_late(count: int) -> Lateness:
    """Lateness of asyncio.sleep."""
    late = []
    for delay in _delays(count):
        due = time.monotonic() + delay
        await asyncio.sleep(delay)
        late.append(time.monotonic() - due)
    return _lateness(late)


def netsim_late(count: int) -> Lateness:
    """Lateness of netsim's own loop."""
    loop = Loop()
    late: list[float] = []
    delays = _delays(count)

    def arm() -> None:
        due = loop.time() + delays[len(late)]

        def fire() -> None:
            late.append(loop.time() - due)
            arm() if len(late) < count else loop.stop()

        loop.call_at(due, fire)

    arm()
    loop.run()
    loop.close()
    return _lateness(late)


def _delays(count: int) -> list[float]:
    random = Random(1)
    return [random.uniform(*TIMERS_S) for _ in range(count)]


def _lateness(late_s: list[float]) -> Lateness:
    return Lateness(*(float(ms) for ms in np.percentile(late_s, (0, 50, 99)) * 1e3))


@click.group()
def main() -> None:
    """An end for `moa-bench loop`, not for use."""


@main.command()
@click.argument("loop")
@click.option("--ready-file", type=click.Path(path_type=Path), required=True)
def server(loop: str, ready_file: Path) -> None:
    run(loop, serve(lambda address: ready_file.write_text(address, "utf-8")))


@main.command()
@click.argument("loop")
@click.argument("address")
@click.option("--seconds", type=float, required=True)
def client(loop: str, address: str, seconds: float) -> None:
    json.dump([asdict(each) for each in run(loop, stream(address, seconds))], sys.stdout)


@main.command()
@click.argument("loop")
@click.option("--count", type=int, required=True)
def timers(loop: str, count: int) -> None:
    json.dump(asdict(netsim_late(count) if loop == NETSIM else run(loop, sleep_late(count))), sys.stdout)


if __name__ == "__main__":
    main()
