"""What signals do to a server: reload, drain, an end to the grace, and an end whatever hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.authentication import Gate
from moa_server.access.keys import KeyEntry, changing, hash_of, new_key
from moa_server.app import serve
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.stepper import Work
from moa_server.running.running_server import RunningServer
from moa_server.service.host import Host
from moa_server.verifier import Target, TargetOutput
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import error_from_rpc

from tests.net.server_peer import Peer, make_host, serving, until
from tests.net.test_server_lifecycle import HangingStepper

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
FOREVER = 600.0  # a grace that no test waits for


class AbandonedStepper(HangingStepper):
    """Hangs, and says on which thread."""

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        self.thread = threading.current_thread()
        return super().forward_all(work)


@asynccontextmanager
async def serving_until_signalled(host: Host) -> AsyncIterator[tuple[grpc.aio.Channel, asyncio.Task[None]]]:
    """The whole life of a server, in this process, which takes its signals."""
    announced: asyncio.Queue[str] = asyncio.Queue()
    life = asyncio.create_task(serve(host, lambda where, _: announced.put_nowait(where)))
    try:
        where = asyncio.create_task(announced.get())
        await asyncio.wait((life, where), return_when=asyncio.FIRST_COMPLETED)
        async with grpc.aio.insecure_channel(await where) as channel:
            yield channel, life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_a_reload_ends_nothing_and_a_second_sigterm_ends_the_grace(target: Target) -> None:
    host = make_host(target, grace_seconds=FOREVER, peers="one.example:1,[2001:db8::1]:2")
    async with serving_until_signalled(host) as (channel, life):
        waiting = Peer(channel)  # no draft comes, so its answer waits
        await waiting.open()
        await waiting.ask(PROMPT, GREEDY)
        await waiting.verdict()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: host.lifecycle.draining)
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(channel).open()
        refusal = error_from_rpc(caught.value)
        assert isinstance(refusal, UnavailableError)
        assert refusal.servers == ("[2001:db8::1]:2", "one.example:1")
        assert waiting.go_away is None
        assert not life.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await waiting.done()
        assert waiting.verdicts[-1].finish == pb.FINISH_DRAINING
        assert waiting.go_away is not None
        assert list(waiting.go_away.servers) == ["one.example:1", "[2001:db8::1]:2"]  # others go elsewhere
        await life


async def test_without_a_grace_answers_end_at_once_and_are_told(target: Target) -> None:
    async with serving_until_signalled(make_host(target, grace_seconds=0.0)) as (channel, life):
        peer = Peer(channel)
        await peer.open()
        await peer.ask(PROMPT, GREEDY)
        await peer.verdict()
        os.kill(os.getpid(), signal.SIGTERM)
        await peer.done()
        assert peer.verdicts[-1].finish == pb.FINISH_DRAINING
        assert peer.go_away is not None
        await life


async def test_a_forward_that_hangs_does_not_hold_up_the_end(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InferenceThread.stop, "__defaults__", (0.0,))  # else it is waited for
    stepper = AbandonedStepper(target)
    try:
        async with serving_until_signalled(make_host(target, stepper=stepper, grace_seconds=0.0)) as (channel, life):
            peer = Peer(channel)
            await peer.open(memory=False)
            await peer.ask(PROMPT, GREEDY)
            await until(stepper.entered.is_set)
            os.kill(os.getpid(), signal.SIGTERM)
            await peer.done()
            assert peer.go_away is not None
            await life
    finally:
        stepper.release.set()
        await asyncio.to_thread(stepper.thread.join)  # while there is a loop that it can report to


async def test_a_client_that_ignores_its_goaway_does_not_hold_up_the_end(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunningServer.close, "__defaults__", (0.1,))  # else it is waited for
    async with serving_until_signalled(make_host(target, grace_seconds=0.0)) as (channel, life):
        peer = Peer(channel)
        await peer.open()
        os.kill(os.getpid(), signal.SIGTERM)
        await life  # nothing was read, and no goodbye said


async def test_what_fails_in_a_reload_leaves_the_rest_alone(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    read: list[str] = []

    def fail() -> NoReturn:
        raise OSError("a disk that is gone")

    async with serving(make_host(target)) as running:
        running.reloads[:0] = [("one", fail), ("two", lambda: read.append("two"))]
        running.reload()
    assert read == ["two"]
    assert "reload failed; what was in force stays" in capsys.readouterr().out


async def test_a_reload_reads_the_keys_and_a_file_that_is_gone_leaves_them(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"

    def add(name: str) -> None:
        with changing(path) as book:
            book[0] = book[0].with_entry(KeyEntry(name, hash_of(new_key())))

    add("one")
    host = make_host(target)
    host.admission.gate = Gate(path)
    async with serving(host) as running:
        add("two")
        running.reload()
        assert host.admission.gate.keys == 2
        path.unlink()
        running.reload()
        assert host.admission.gate.keys == 2
