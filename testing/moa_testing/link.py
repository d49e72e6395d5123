"""The link to one server: gRPC's calls without sockets, over netsim's link model and its virtual TCP sender.

State: the two directions of the link, and the calls on it. Messages of a call arrive in order, each when its last byte
has; what the link loses is sent again, as TCP does; a call that is reset ends at both ends.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from zlib import crc32

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from moa_client.link.security import Security
from moa_client.link.stream import EOF
from moa_server.service.host import Host
from moa_server.service.service import MoaService
from netsim.core.conditions import Conditions, ConditionSchedule
from netsim.core.link import Direction, LinkModel
from netsim.core.stream import StreamSender

UP, DOWN = Direction.UP, Direction.DOWN
SMALL_BYTES = 100  # of what has no content: the beginning of a call, its status, a reset
BEGIN, LEFT = "begin", "left"  # what a client says without content


def _now() -> float:
    return asyncio.get_running_loop().time()


def _ended(code: grpc.StatusCode, words: str = "", trailing: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), words, None)


class Pipe:
    """One direction of a call. `deliver`: takes each message when it has arrived."""

    def __init__(self, sender: StreamSender, deliver: Callable[[Any], None]) -> None:
        self._sender, self._deliver = sender, deliver
        self._messages: deque[tuple[int, Any]] = deque()  # with the number of bytes after which it is there
        self._offered = self._arrived = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def put(self, message: Any, nbytes: int = SMALL_BYTES) -> None:
        self._offered += nbytes
        self._messages.append((self._offered, message))
        self._sender.offer(nbytes, _now())
        self._wait()

    def cut(self) -> None:
        """What is under way is lost, and sent again later."""
        self._sender.cut(_now())
        self._wait()

    def close(self) -> None:
        self._is_closed = True
        self._messages.clear()
        self._wait()

    def _on_due(self) -> None:
        self._sender.advance(_now())
        self._arrived += self._sender.deliver(_now()).nbytes
        while self._messages and self._messages[0][0] <= self._arrived:
            self._deliver(self._messages.popleft()[1])
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = math.inf if self._is_closed else self._sender.wake
        self._timer = asyncio.get_running_loop().call_at(due, self._on_due) if due < math.inf else None


class Call:
    """One call: to its client what gRPC's is, and to the service gRPC's context of it."""

    def __init__(self, link: Link, path: str, parse: Callable[[bytes], Message], metadata: Any = None) -> None:
        self.link, self._path, self._parse = link, path, parse
        self._metadata = tuple(metadata or ())
        self._received: asyncio.Queue[Any] = asyncio.Queue()  # messages, and at last EOF or an error
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._status, self._is_over = _ended(grpc.StatusCode.OK), False
        self._on_status: Callable[[Any], None] = lambda _: None
        self._server: asyncio.Task[None] | None = None
        self.up, self.down = link.pipe(UP, self._at_server), link.pipe(DOWN, self._at_client)
        link.calls.add(self)
        self.up.put(BEGIN)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._on_status = callback

    async def read(self) -> Any:
        item = await self._received.get()
        if isinstance(item, grpc.aio.AioRpcError):
            raise item
        return item

    async def write(self, message: Message) -> None:
        if self._is_over:
            raise asyncio.InvalidStateError("the call is over")
        data = message.SerializeToString()
        self.up.put(data, 1 + len(data))

    async def done_writing(self) -> None:
        pass

    async def code(self) -> grpc.StatusCode:
        return self._status.code()

    async def details(self) -> str:
        return self._status.details() or ""

    async def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata()

    def cancel(self) -> None:
        """The client leaves; the server learns of it when the link says so."""
        if not self._is_over:
            self._at_client(_ended(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
            self.up.put(LEFT)

    def reset(self, *, at_once: bool = True) -> None:
        """Both ends lose it; what was on its way to the server is lost too, or still arrives (`at_once` false)."""
        self.down.close()
        self._at_client(_ended(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer"))
        if at_once:
            self.up.close()
            self._at_server(LEFT)
        else:
            self.up.put(LEFT)

    def _at_client(self, item: bytes | grpc.aio.AioRpcError) -> None:
        if self._is_over:
            return
        if isinstance(item, grpc.aio.AioRpcError):
            self._status, self._is_over = item, True
            self._on_status(self)
            self._received.put_nowait(EOF if item.code() is grpc.StatusCode.OK else item)
            return
        try:
            message = self._parse(item)
        except DecodeError:
            self._at_client(_ended(grpc.StatusCode.INTERNAL, "Exception deserializing response!"))
            return
        if self.link.tamper is not None:
            self.link.tamper(self, message)
        self._received.put_nowait(message)

    def _at_server(self, item: bytes | str) -> None:
        if isinstance(item, bytes):
            self._requests.put_nowait(item)
        elif item == LEFT:
            if self._server is not None:
                self._server.cancel()
        elif self.link.service is None:
            self.down.put(_ended(grpc.StatusCode.UNAVAILABLE, "Connection refused"))
        else:
            self._server = asyncio.create_task(self._serve(self.link.service))
            self._server.add_done_callback(lambda _: self.link.calls.discard(self))

    async def _serve(self, service: grpc.GenericRpcHandler[Any, Any]) -> None:
        rpc: Any = service.service(cast(Any, SimpleNamespace(method=self._path)))
        parse, status = rpc.request_deserializer or bytes, _ended(grpc.StatusCode.OK)
        peer = f"ipv4:10.9.9.9:{crc32(str(self._metadata).encode()) % 60_000}"  # a connection for each conversation
        context = SimpleNamespace(peer=lambda: peer, auth_context=dict, write=self._answer, abort=_abort)
        context.invocation_metadata = lambda: self._metadata
        try:
            if rpc.request_streaming:
                await rpc.stream_stream(self._frames(parse), context)
            elif rpc.response_streaming:
                await rpc.unary_stream(parse(await self._requests.get()), context)
            else:
                await self._answer(await rpc.unary_unary(parse(await self._requests.get()), context))
        except grpc.aio.AioRpcError as aborted:
            status = aborted
        self.down.put(status)

    async def _frames(self, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while True:
            yield parse(await self._requests.get())

    async def _answer(self, message: Message | bytes) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self.down.put(data, 1 + len(data))


async def _abort(*status: Any) -> NoReturn:
    raise _ended(*status)


class Link:
    """The link to a server, and the server at its far end.

    Attributes:
        host: None: none of ours is there.
        service: what answers calls; None: nobody listens there.
        tamper: is shown each message that arrives at a client, and may change it.
    """

    def __init__(self, conditions: Conditions, seed: int) -> None:
        self.host: Host | None = None
        self.service: grpc.GenericRpcHandler[Any, Any] | None = None
        self.calls: set[Call] = set()
        self.tamper: Callable[[Call, Message], None] | None = None
        self.ways = {way: LinkModel(ConditionSchedule([(0.0, conditions)]), seed, way) for way in (UP, DOWN)}

    def pipe(self, way: Direction, deliver: Callable[[Any], None]) -> Pipe:
        back = self.ways[DOWN if way is UP else UP]
        rtt_ms = 2 * back.schedule.at(_now()).delay.effective().mean_ms
        return Pipe(StreamSender(self.ways[way], back, _now(), rtt_ms / 1e3), deliver)

    def cut(self, *ways: Direction, seconds: float = math.inf) -> None:
        """Nothing gets through until `heal`, or for so long; no direction: both."""
        for way in ways or (UP, DOWN):
            self.ways[way].schedule.blackhole(_now(), _now() + seconds)
            for call in self.calls:
                (call.up if way is UP else call.down).cut()

    def heal(self) -> None:
        for model in self.ways.values():
            model.schedule.heal(_now())

    def reset(self, *, at_once: bool = True) -> None:
        """All calls break."""
        for call in tuple(self.calls):
            call.reset(at_once=at_once)
        self.calls.clear()

    def serve(self, host: Host) -> None:
        self.host, self.service = host, MoaService(host).handler()

    def stop(self) -> None:
        """The server dies, with all that it holds."""
        self.host = self.service = None
        self.reset()

    # ------------------------------------------------------------ what the generated stub uses of gRPC's channel

    def unary_unary(self, path: str, *, response_deserializer: Any, **_: Any) -> Callable[..., Any]:
        async def call(request: Message, *, metadata: Any = None, **options: Any) -> Any:
            made = Call(self, path, response_deserializer, metadata)
            try:
                async with asyncio.timeout(options.get("timeout")):
                    await made.write(request)
                    return await made.read()
            except TimeoutError:
                raise _ended(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
            finally:
                made.cancel()

        return call

    def unary_stream(self, path: str, *, response_deserializer: Any, **_: Any) -> Callable[..., Any]:
        def call(request: Message, *, metadata: Any = None) -> Call:
            made = Call(self, path, response_deserializer, metadata)
            made.up.put(request.SerializeToString(), 1 + request.ByteSize())
            return made

        return call

    def stream_stream(self, path: str, *, response_deserializer: Any, **_: Any) -> Callable[..., Any]:
        return lambda _=None, metadata=None: Call(self, path, response_deserializer, metadata)

    def get_state(self) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def close(self, grace: float | None) -> None:
        """Nothing is held open."""


@dataclass(frozen=True, slots=True)
class LinkSecurity(Security):
    """Opens channels over simulated links. `links`: by the server's address."""

    links: Mapping[str, Link] = field(default_factory=dict, compare=False)

    def proxy(self, address: str) -> None:
        return None

    def open_channel(self, address: str, *_: object) -> grpc.aio.Channel:
        return cast(grpc.aio.Channel, self.links[address])
