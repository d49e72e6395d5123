"""The kinds of attack: each is one thing that a client may do to the others, done as fast as it goes.

An attack runs until it is cancelled, in a process of its own (`python -m moa_bench.suites.hostile.attacks ADDRESS
NAME`). What the server ends is begun again.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from typing import Any

import click
import grpc
from moa.v1 import moa_pb2 as pb

from moa_bench.suites.hostile.victim import CALL, FAILURES, Victim, send

MILLION = 1_000_000
PROMPT_TOKENS = 200
TOGETHER = 16  # calls or streams of one attack: as many as the server has sessions, by default
UNREAD_SECONDS = 29.0  # a frame is read so often: below what would be taken for reading nothing
RETRY_SECONDS = 0.01
NICENESS = 19  # the attacker's own work must not be what the honest client on the same core waits for

Run = Callable[[Victim], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of attack.

    Args:
        answers: it has answers written, so that its turns of the target are taken from everybody's, as an honest
            client's are. It is compared with the honest client next to an honest neighbour, not by itself.
    """

    name: str  # for tables and --attack
    run: Run  # once; it is repeated
    answers: bool = False


async def keep_attacking(run: Run, victim: Victim) -> None:
    """Attacks until cancelled."""
    while True:
        with suppress(*FAILURES, OSError):
            await run(victim)
        await asyncio.sleep(RETRY_SECONDS)


def _draft(nodes: int, base: int = 1 << 30) -> dict[str, pb.Draft]:
    return {"draft": pb.Draft(base=base, tokens=[1] * nodes)}


def _ask(seed: int = 0) -> pb.Ask:
    return pb.Ask(id=seed + 1, tokens=[1] * PROMPT_TOKENS, sampling=pb.Sampling(temperature=1.0, seed=seed))


async def neighbour(victim: Victim) -> None:
    """No attack: an honest client that has one answer after the other written."""
    request = pb.GenerateRequest(tokens=[1] * PROMPT_TOKENS, sampling=pb.Sampling(temperature=1.0, max_tokens=64))
    call = victim.channel.unary_stream(CALL + "Generate")(request.SerializeToString())
    async for _ in call:
        pass


def _flood(frames: Callable[[Victim], Iterable[dict[str, Any]]]) -> Run:
    """A stream on which frames are sent as fast as it goes, and nothing is read; without end, or until an answer."""

    async def flood(victim: Victim) -> None:
        call = await victim.opened()
        for frame in frames(victim):
            await send(call, **frame)
        await call.read()

    return flood


async def _compressed_drafts(victim: Victim) -> None:
    zipping = Victim(victim.address, grpc.Compression.Gzip)
    zipping.described = victim.described
    try:
        await HUGE_DRAFT(zipping)
    finally:
        await zipping.channel.close()


async def _random_bytes(victim: Victim) -> None:
    call = await victim.opened()
    await call.write(os.urandom(1000))
    await call.read()


async def _slow_reader(victim: Victim) -> None:
    call = await victim.opened(victim.open_message(ask=_ask()))
    while True:
        await asyncio.sleep(UNREAD_SECONDS)
        await call.read()


async def _idle_chats(victim: Victim) -> None:
    calls = [await victim.opened() for _ in range(TOGETHER)]
    await asyncio.gather(*(call.read() for call in calls))


async def _long_opens(victim: Victim) -> None:
    call = await victim.opened(victim.open_message([1] * victim.context))
    call.cancel()


async def _refused_opens(victim: Victim) -> None:
    message = victim.open_message()
    message.identity.target_id = "n" * 900_000
    message.identity.target_fingerprint = bytes(32)
    await victim.opened(message)


async def _cancelled_opens(victim: Victim) -> None:
    calls = [victim.stream() for _ in range(TOGETHER)]
    for call in calls:
        await send(call, open=victim.open_message())
    await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()


async def _unopened_streams(victim: Victim) -> None:
    calls = [victim.stream() for _ in range(500)]
    await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)


async def _connections(victim: Victim) -> None:
    host, _, port = victim.address.rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    writers = []
    for _ in range(500):
        _, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
    try:
        await asyncio.sleep(1.0)
    finally:
        for writer in writers:
            writer.close()


async def _metadata(victim: Victim) -> None:
    call = victim.stream(metadata=(("x", "y" * 100_000),))
    await call.read()


async def _unread_downloads(victim: Victim) -> None:
    fetch = victim.channel.unary_stream(CALL + "FetchDrafter")
    answer = await fetch(b"").read()
    files = pb.FetchDrafterResponse.FromString(answer).manifest.files
    largest = max(files, key=lambda file: file.size)
    request = pb.FetchDrafterRequest(name=largest.name).SerializeToString()
    calls = [fetch(request) for _ in range(TOGETHER)]
    await asyncio.gather(*(call.code() for call in calls))


async def _describes(victim: Victim) -> None:
    await asyncio.gather(*(victim.describe() for _ in range(TOGETHER)))


async def _calls_over_many_connections(victim: Victim) -> None:
    """Each connection has an allowance of its own, but all of them have one address."""
    victims = [Victim(victim.address) for _ in range(2 * TOGETHER)]

    async def call_again_and_again(each: Victim) -> None:
        for _ in range(100):
            with suppress(*FAILURES):
                await each.describe()

    try:
        await asyncio.gather(*map(call_again_and_again, victims))
    finally:
        await asyncio.gather(*(each.channel.close() for each in victims))


HUGE_DRAFT = _flood(lambda _: [_draft(MILLION)])
NEIGHBOUR = Attack("an honest neighbour", neighbour, answers=True)
ATTACKS = (
    Attack("stale drafts of a whole context", _flood(lambda victim: repeat(_draft(victim.context)))),
    Attack("drafts of a million tokens", HUGE_DRAFT),
    Attack("the same in gzip", _compressed_drafts),
    Attack("beats without end", _flood(lambda _: ({"beat": pb.Beat(stamp=stamp)} for stamp in count()))),
    Attack("random bytes", _random_bytes),
    Attack("the same question again and again, unread", _flood(lambda _: repeat({"ask": _ask()})), answers=True),
    Attack(
        "another question each time, unread", _flood(lambda _: ({"ask": _ask(seed)} for seed in count())), answers=True
    ),
    Attack("a reader of one frame every 29 s", _slow_reader, answers=True),
    Attack("16 chats that ask nothing", _idle_chats),
    Attack("Opens of a whole context, cancelled", _long_opens),
    Attack("Opens refused, with a name of 900 kB", _refused_opens),
    Attack("16 Opens cancelled within 10 ms", _cancelled_opens),
    Attack("500 streams without an Open", _unopened_streams),
    Attack("500 connections that say nothing", _connections),
    Attack("100 kB of metadata", _metadata),
    Attack("16 downloads that are not read", _unread_downloads),
    Attack("Describe without end", _describes),
    Attack("the same over 32 connections", _calls_over_many_connections),
)


async def attack(address: str, name: str, ready: Callable[[], object]) -> None:
    """Attacks until cancelled; says when it begins."""
    chosen = next(attack for attack in (*ATTACKS, NEIGHBOUR) if attack.name == name)
    victim = Victim(address)
    await victim.describe()
    ready()
    await keep_attacking(chosen.run, victim)


@click.command()
@click.argument("address")
@click.argument("name")
@click.option("--ready-file", type=click.Path(path_type=Path), required=True)
def main(address: str, name: str, ready_file: Path) -> None:
    """An attacker for `moa-bench`, not for use."""
    os.nice(NICENESS)
    asyncio.run(attack(address, name, lambda: ready_file.write_text(f"{address}\n", "utf-8")))


if __name__ == "__main__":
    main()
