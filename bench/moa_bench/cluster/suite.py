"""`moa-bench proxy`: the time of a frame there and back on a direct connection, and by the two ways that Serve offers.

No model: what differs is the way of a frame. Serve's own gRPC proxy fetches each one by a call of an actor; with direct
ingress the replica's process has a gRPC server of Serve's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_server.cluster.connection import connected

from moa_bench.cluster.echo import METHOD, serve_directly
from moa_bench.cluster.own_ray import own_ray
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread

PAGE = "fleet/ray.md"
STREAMS = (1, 16)
FRAME = pb.ClientFrame(ack=pb.Ack(committed=1))
WARM_FRAMES = 10
APPLICATION = "echo"
CPUS = 4  # that Ray may hand out: its parts and the echo ask for some, and compute nothing
WAYS = {"direct": "direct", "ingress": "direct ingress", "proxy": "gRPC proxy"}


def run_proxy(*, quick: bool, json_file: Path | None) -> None:
    """Measures and reports.

    Raises:
        MoaError: Ray does not start.
    """
    experiment = Experiment("proxy", quick=quick, json_file=json_file)
    rounds, frames = (2, 20) if quick else (7, 200)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    direct = context.Process(target=_serve, args=(theirs,), daemon=True)
    direct.start()
    ports = {"direct": int(ours.recv()), "ingress": _free_port(), "proxy": _free_port()}
    os.environ.update(
        RAY_SERVE_ENABLE_DIRECT_INGRESS="1",
        RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT=str(ports["ingress"]),
        RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT=str(ports["ingress"] + 1),
    )
    with ExitStack() as stack:
        stack.callback(direct.terminate)
        own_ray(stack)
        with connected(None, CPUS):
            _deploy(ports["proxy"])
        experiment.result["frames_ms"] = {
            streams: asyncio.run(_compare(ports, streams, rounds, frames)) for streams in STREAMS
        }
    experiment.result |= {"target": f"no model; ray {version('ray')}", "rounds": rounds, "frames": frames}
    experiment.publish(render(experiment.result), page=PAGE)


def render(result: Mapping[str, Any]) -> str:
    """A row for each number of streams."""
    rows: list[list[object]] = []
    for streams, met in result["frames_ms"].items():
        rows.append([streams, *(met[way].text(2) for way in WAYS)])
    note = (
        f"Milliseconds from a frame to its answer, of so many streams at once: {result['frames']} frames each in "
        f"{result['rounds']} rounds, the ways in turn.\n"
    )
    return "\n".join([facts_line(result), note, table(["streams", *WAYS.values()], rows)])


async def _compare(ports: Mapping[str, int], streams: int, rounds: int, frames: int) -> dict[str, Spread]:
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(rounds):
        for place in range(len(WAYS)):
            way = list(WAYS)[(place + turn) % len(WAYS)]
            taken[way].append(await frame_ms(ports[way], streams, frames))
    return {way: Spread.of(each) for way, each in taken.items()}


async def frame_ms(port: int, streams: int, frames: int) -> float:
    """Mean time from a frame to its answer, of so many streams at once."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(METHOD, pb.ClientFrame.SerializeToString, pb.ServerFrame.FromString)

        async def talk() -> float:
            metadata = (("application", APPLICATION),)  # without it Serve's proxy refuses the call
            stream = call(metadata=metadata)  # type: ignore[call-arg]  # the stubs want all frames at once
            for _ in range(WARM_FRAMES):
                await stream.write(FRAME)
                await stream.read()
            began = time.perf_counter()
            for _ in range(frames):
                await stream.write(FRAME)
                await stream.read()
            took = time.perf_counter() - began
            await stream.done_writing()
            return took

        took = await asyncio.gather(*(talk() for _ in range(streams)))
    return 1e3 * sum(took) / streams / frames


def _deploy(port: int) -> None:
    """Starts the stream behind a proxy, which listens there, and with a server of the replica's own."""
    from ray import serve
    from ray.serve.config import gRPCOptions

    from moa_bench.cluster.echo import Echo

    serve.start(
        proxy_location="HeadOnly",
        http_options={"port": 0},
        grpc_options=gRPCOptions(port=port, grpc_servicer_functions=["moa_bench.cluster.echo:add_to_proxy"]),
    )
    serve.run(serve.deployment(max_ongoing_requests=64)(Echo).bind(), name=APPLICATION)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _serve(answer: Connection) -> None:
    async def run() -> None:
        server, port = await serve_directly()
        answer.send(port)
        await server.wait_for_termination()

    asyncio.run(run())
