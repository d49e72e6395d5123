"""Does a server keep anything of sessions that are over? Many are opened, used and left in every way.

The server is a process of its own, with room for the keys and values of a few conversations only, so that sessions lose
theirs all the time. Its memory is read when nobody is connected and detached sessions have expired: after the first
batch, when every buffer has been used once, and after the last.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import DataError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.child import running_server
from moa_bench.harness.relay import relaying
from moa_bench.report.memory import MemoryKind, memory_mb
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.hostile.soak import SoakEffort
from moa_bench.suites.hostile.victim import Victim, send

AT_ONCE = 10  # sessions that are open together
MOST_GROWTH = 0.02
ANSWER_TOKENS = 12
KV_BYTES = 48 << 20  # what the sessions that are open together ask for: idle ones lose theirs
DETACHED_S = 1.0
SETTLED_S = 4.0  # after which detached sessions are gone; the server looks every second
RETRY_S = 1.0
PATIENCE_S = 60.0
REFUSALS = 200  # how often a refused session tries again: without a queue, one may be unlucky for long


@dataclass(slots=True)
class Soak:
    """What a soak found."""

    memory: dict[int, float]  # resident MB, without files, by sessions so far; 0 where the system does not say
    left: dict[str, int]  # sessions by how they were left
    refused: int  # how often the server had no room at first

    @property
    def growth(self) -> float:
        """Growth of the memory from the first reading to the last, as a share."""
        readings = list(self.memory.values())
        return readings[-1] / readings[0] - 1.0 if readings[0] else 0.0


Leave = Callable[["User"], Awaitable[None]] | None
"""How a session is left that has got the first token of an answer; None: it has asked nothing."""


class NoRoom(Exception):
    """Raised when the server has no room for a session now."""


def measure(effort: SoakEffort, run: SuiteRun) -> Result:
    flags = ["--kv-bytes", str(KV_BYTES), "--detached-seconds", f"{DETACHED_S:g}", "--log-level", "error"]
    try:
        with running_server(run.model, flags=flags) as server, make_progress().task(f"{effort.sessions} sessions"):
            soak = asyncio.run(soak_server(server.address, server.process.pid, effort.sessions, effort.batch))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return {"soak": soak, "growth": soak.growth}


def check(result: Mapping[str, Any]) -> None:
    """Raises DataError where the server's memory has grown by more than it may; a quick soak does not tell."""
    if not result["quick"] and result["growth"] > MOST_GROWTH:
        raise DataError(
            f"The server's memory has grown by {result['growth']:.1%}.", hint="Something of a session is kept."
        )


async def soak_server(address: str, process: int, sessions: int, batch: int) -> Soak:
    """Opens and leaves sessions in batches; reads the process's memory after each."""
    soak = Soak({}, {}, 0)
    ways = itertools.cycle(WAYS.items())
    for start in range(0, sessions, batch):
        gate = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in range(start, min(start + batch, sessions)):
                name, leave = next(ways)
                soak.left[name] = soak.left.get(name, 0) + 1
                tasks.append(group.create_task(_use(gate, address, number, leave)))
        soak.refused += sum(task.result() for task in tasks)
        await asyncio.sleep(SETTLED_S)
        soak.memory[start + len(tasks)] = memory_mb(process, MemoryKind.ANONYMOUS) or 0.0
    return soak


async def _use(gate: asyncio.Semaphore, address: str, number: int, leave: Leave) -> int:
    """One session; how often it was refused before."""
    async with gate:
        for attempt in range(REFUSALS):
            user = User(address, random.Random(number))
            try:
                await user.open()
                if leave is not None:
                    await user.ask()
                    await leave(user)
            except NoRoom:
                await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))
            else:
                return attempt
            finally:
                await user.close()
    raise DataError(f"The server had no room for a session {REFUSALS} times.")


class User:
    """A client of one session, which leaves it in any of the ways."""

    def __init__(self, address: str, chance: random.Random) -> None:
        self._stack = contextlib.ExitStack()
        self._chance = chance
        self._server = Victim(self._stack.enter_context(relaying(address)).address)  # what can be cut
        self._call: Any = None
        self.token = b""

    async def open(self, token: bytes = b"") -> None:
        await self._server.describe()
        self._call = self._server.stream()
        message = self._server.open_message()
        message.resume_token, message.reused_state, message.credit_bytes = token, True, 0
        await send(self._call, open=message)
        self.token = (await self._next()).opened.resume_token

    async def ask(self) -> None:
        """A prompt of some length, and the first token of the answer."""
        tokens = [self._chance.randrange(3, 1000) for _ in range(self._chance.randrange(8, 200))]
        sampling = pb.Sampling(max_tokens=ANSWER_TOKENS, ignore_end_of_text=True)
        await send(self._call, ask=pb.Ask(id=1, base=0, tokens=tokens, sampling=sampling, answer_start=len(tokens)))
        await self._verdict()

    async def finish(self) -> None:
        while not (await self._verdict()).finish:
            pass

    async def _verdict(self) -> pb.Verdict:
        while True:
            frame = await self._next()
            if frame.WhichOneof("frame") == "verdict":
                return frame.verdict

    async def _next(self) -> pb.ServerFrame:
        try:
            async with asyncio.timeout(PATIENCE_S):
                frame: Any = await self._call.read()
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise NoRoom from None
            raise
        if frame is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            raise DataError("The server ended a session that was in use.")
        return pb.ServerFrame.FromString(frame)

    async def bye(self) -> None:
        await self.finish()
        await send(self._call, bye=pb.Bye())
        await self._call.done_writing()
        async with asyncio.timeout(PATIENCE_S):
            while await self._call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                pass  # memory that was under way

    async def stop(self) -> None:
        await send(self._call, stop=pb.Stop())
        await self.bye()

    async def cancel(self) -> None:
        """Ends the stream without a Bye; the connection stays."""
        self._call.cancel()

    async def vanish(self) -> None:
        """Ends the connection in the middle of it, as a killed client does."""
        self._stack.close()

    async def idle(self) -> None:
        await self.finish()
        await asyncio.sleep(2 * DETACHED_S)

    async def resume(self) -> None:
        await self.cancel()
        await self.open(self.token)
        await self.ask()
        await self.bye()

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        await self._server.channel.close(None)
        self._stack.close()


WAYS: dict[str, Leave] = {
    "Bye": User.bye,
    "a stop and Bye": User.stop,
    "a cut stream": User.cancel,
    "a lost connection": User.vanish,
    "long idleness": User.idle,
    "never asking": None,
    "a resume and Bye": User.resume,
}
