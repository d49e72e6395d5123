"""Two processes share a target over gloo: the texts and the memory of one process, and an end for both when one is gone."""

import asyncio
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Committed, Event, ExecutionChanged, ServerChanged
from moa_server.loading import memory_source
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.protocol.messages import AnswerSettings, Finish
from moa_shared.protocol.protobuf_messages import settings_to_proto

from tests.net.client_device import without_drafter
from tests.net.client_talk import Screen, server_at, talking_to, watch
from tests.net.server_peer import GREEDY, PROMPT, SAMPLED, Peer, generate, plain_text, row_of
from tests.net.test_server_answers import answer_in_rounds
from tests.support.messages import steady
from tests.support.programs import PATIENCE, Program, environment, free_port, module, started
from tests.support.tiny_models import SMALL, save_drafter, save_tiny_model, small_drafter
from tests.support.torch_models import torch_model

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch programs")]

ENVIRONMENT = environment("proto", "shared", "server", "kernels")
CHANGES = {**SMALL, "seed": 3}
LONG = AnswerSettings(max_tokens=110, ignore_end_of_text=True)


@dataclass(frozen=True)
class Replica:
    """The processes of a replica, rank 0 first, and where it serves."""

    programs: list[Program]
    address: str

    @property
    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address)

    def ends(self) -> list[int]:
        return [program.process.wait(PATIENCE) for program in self.programs]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a drafter that reuses a layer of it."""
    folder = tmp_path_factory.mktemp("shared")
    save_tiny_model(folder / "tiny", **CHANGES)
    save_drafter(folder / "drafter", small_drafter(hidden_size=32, target_head_dim=8, reused_layers=1))
    return folder


@pytest.fixture(scope="module")
def alone() -> TorchTarget:
    """The same target in one process."""
    return TorchTarget(torch_model(**CHANGES))


def arguments(files: Path, *options: str) -> list[str]:
    """Of the server."""
    return [
        *("serve", str(files / "tiny"), "--drafter", str(files / "drafter")),
        *("--execution", "float32", "--port", "0", "--kv-bytes", "4000000", "--allow-ignore-end-of-text"),
        *("--log-format", "plain", "--log-level", "error", *options),
    ]


@contextmanager
def sharing(files: Path, *options: str) -> Iterator[Replica]:
    """Two processes that share the target, as torchrun starts them; they are killed at the end."""
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = module("moa_server", arguments(files, *options))
    with ExitStack() as stack:
        programs = [
            stack.enter_context(started(command, {**ENVIRONMENT, **group, "RANK": rank, "LOCAL_RANK": rank}))
            for rank in ("0", "1")
        ]
        line = programs[0].out.readline()
        assert line.startswith("serving tiny on "), programs[0].err.read()
        yield Replica(programs, line.split()[-1])


async def identity_of(channel: grpc.aio.Channel) -> pb.Identity:
    described: pb.DescribeResponse = await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
    assert described.execution.details.endswith("shared by 2 processes, 1 threads")
    identity: pb.Identity = described.identity
    return identity


async def test_two_processes_give_the_texts_and_the_memory_of_one_and_drain(
    files: Path, tmp_path: Path, alone: TorchTarget
) -> None:
    with sharing(files) as replica:
        async with replica.channel as channel:
            for settings in (GREEDY, SAMPLED):
                assert await generate(channel, PROMPT, settings) == plain_text(alone, PROMPT, settings)
            identity = await identity_of(channel)
            for trees in (False, True):
                await _compare_a_conversation(channel, identity, files, alone, trees=trees)
            texts = await asyncio.gather(
                *(generate(channel, [*PROMPT, token], GREEDY) for token in range(4))  # in the same forwards
            )
            assert texts == [plain_text(alone, [*PROMPT, token], GREEDY) for token in range(4)]

            request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(LONG))
            answer = aiter(moa_pb2_grpc.MoaStub(channel).Generate(request))
            begun = list((await anext(answer)).tokens)
            waiting = Peer(channel)
            await waiting.open(identity=identity)
            for program in reversed(replica.programs):  # as torchrun does
                program.process.send_signal(signal.SIGTERM)
            await waiting.done()
            assert waiting.go_away is not None
            assert (
                begun + [token async for part in answer for token in part.tokens] == plain_text(alone, PROMPT, LONG)[0]
            )
        assert replica.ends() == [0, 0]


async def _compare_a_conversation(
    channel: grpc.aio.Channel, identity: pb.Identity, files: Path, alone: TorchTarget, *, trees: bool
) -> None:
    """An answer in rounds of drafts, with its memory rows and the states of the reused layer."""
    expected, finish = plain_text(alone, PROMPT, SAMPLED)
    peer = Peer(channel)
    await peer.open(identity=identity, memory=False, codecs=[pb.CODEC_BF16], reused_state=True)
    await peer.ask(PROMPT, SAMPLED)
    assert await answer_in_rounds(peer, expected, random.Random(1), trees=trees) is finish
    assert peer.tokens[len(PROMPT) :] == expected
    assert sum(verdict.accepted for verdict in peer.verdicts) > 0

    stop = len(peer.tokens) - 1
    checkpoint = load_checkpoint(files / "drafter")
    source = memory_source(checkpoint, alone)
    assert source is not None
    assert source.state_layer is not None
    cache = alone.new_cache()
    states = alone.forward(cache, peer.tokens[:stop], want_state_layer=source.state_layer).states[source.state_layer]
    for plane, rows in ((pb.PLANE_MEMORY, source.encode(cache.lsa_input(0, stop))), (pb.PLANE_REUSED_STATE, states)):
        held = await peer.rows(stop, plane)
        sent = np.stack([row_of(held[position], position, rows.shape[1]) for position in range(stop)])
        np.testing.assert_allclose(sent, rows, atol=1e-3, rtol=2**-7)  # bf16 has 8 bits
    await peer.bye()


async def test_a_process_that_is_killed_ends_the_replica_and_its_sessions_go_on_elsewhere(
    files: Path, tmp_path: Path, alone: TorchTarget
) -> None:
    expected, _ = plain_text(alone, PROMPT, LONG)
    screen = Screen()
    async with AsyncExitStack() as stack:
        single = stack.enter_context(started(module("moa_server", arguments(files)), ENVIRONMENT))
        other = single.out.readline().split()[-1]
        replica = stack.enter_context(sharing(files, "--peers", other))
        channel = await stack.enter_async_context(replica.channel)
        identity = await identity_of(channel)
        peer = Peer(channel)
        held = without_drafter(identity)
        _, engine = await stack.enter_async_context(talking_to([server_at(replica.address)], held))

        async def kill(event: Event) -> None:
            if isinstance(event, Committed) and not screen.cuts:
                screen.cuts += 1
                await peer.open(identity=identity, run_ahead=True, memory=False)
                await peer.ask(PROMPT, LONG)
                await peer.verdict()
                replica.programs[1].process.kill()

        await watch(engine, screen, PROMPT, LONG, kill)
        await peer.done()
        assert replica.ends() == [69, -signal.SIGKILL]
        assert steady(replica.programs[0].err.read()).splitlines()[-1] == snapshot(
            "Error: The process of rank 1 is gone (its connection is closed). "
            "Its own log says why. Start the replica again; its sessions go on elsewhere meanwhile."
        )
        assert Finish(peer.verdicts[-1].finish) is Finish.DRAINING
        assert peer.go_away is not None
        assert list(peer.go_away.servers) == [other]
        written = peer.tokens[len(PROMPT) :]
        assert written == expected[: len(written)]
        assert len(written) < len(expected)
        assert (screen.cuts, screen.text, engine.connection.dialer.server.address) == (1, expected, other)
        assert [type(each) for each in screen.notices] == [ExecutionChanged, ServerChanged]


@pytest.mark.long
def test_a_process_that_says_nothing_and_one_without_rank_0_end_the_replica(files: Path) -> None:
    with sharing(files) as replica:
        replica.programs[1].process.send_signal(signal.SIGSTOP)
        assert replica.programs[0].process.wait(PATIENCE) == 69
        said = steady(replica.programs[0].err.read()).splitlines()[-1]
        assert said.startswith("Error: The process of rank 1 is gone (it says nothing).")
    with sharing(files) as replica:
        replica.programs[0].process.kill()
        assert replica.ends() == [-signal.SIGKILL, 69]


@pytest.mark.long
def test_torchrun_starts_a_replica_and_passes_its_end_on(files: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    own = arguments(files, "--ready-file", str(ready))
    with started([sys.executable, *launch, "-m", "moa_server", *own], ENVIRONMENT) as run:
        assert any(line.startswith("serving tiny on ") for line in run.out)
        run.process.send_signal(signal.SIGTERM)
        code, _, rest = run.end()
    assert code != 0  # torchrun's own way to say that a signal ended it
    assert "SignalException" in rest
    assert "gone" not in rest
