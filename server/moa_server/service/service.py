"""The gRPC service of moa.v1.Moa. Turns calls into our objects, errors into statuses.

Requests of all but Describe arrive as bytes and are parsed by us, so that malformed ones get our own error messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as aio_health  # type: ignore[attr-defined]  # the stubs do not know it
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import InternalError, MoaError, NotFoundError
from moa_shared.plain_text import plain_line
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_status
from moa_shared.protocol.memory_codec import Codec
from moa_shared.tracing import TRACEPARENT

from moa_server.access.limits import Caller, Right, anonymous
from moa_server.service.converse import ConverseStream, parse_frame
from moa_server.service.frame_writer import BoundedWriter
from moa_server.service.generate import Generation, embed
from moa_server.service.host import Host

log = structlog.get_logger()

SERVICE = "moa.v1.Moa"
Answer = TypeVar("Answer")
Context = grpc.aio.ServicerContext[bytes, Message]


class MoaService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._services = host.services

    def handler(self) -> grpc.GenericRpcHandler[bytes, Message]:
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            ),
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate, None, pb.GenerateResponse.SerializeToString
            ),
            "Embed": grpc.unary_unary_rpc_method_handler(self.embed, None, pb.EmbedResponse.SerializeToString),
            "FetchDrafter": grpc.unary_stream_rpc_method_handler(
                self.fetch_drafter, None, pb.FetchDrafterResponse.SerializeToString
            ),
            "Converse": grpc.stream_stream_rpc_method_handler(self.converse, None, pb.ServerFrame.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        async def run(caller: Caller) -> pb.DescribeResponse:
            services, files = self._services, self._host.drafter_files
            served, engine = services.served, services.engine
            return pb.DescribeResponse(
                protocol_version=PROTOCOL_VERSION,
                server_version=own_version(),
                identity=served.identity,
                limits=services.limits,
                codecs=[pb.Codec.Name(codec) for codec in Codec] if served.drafters else [],
                execution=served.execution,
                drafters=served.drafters,
                step_ms=engine.schedule.cost.plain_ms,
                row_ms=engine.schedule.cost.row_ms,
                load=self._host.load,
                cached_tokens=services.cached_tokens(caller, request.prefix_hashes),
                read_ms=engine.schedule.read_ms,
                servers=self._host.lifecycle.fleet.names(),
                manifest_sha256=files.manifest_sha256 if files is not None else b"",
                companion=files.companion if files is not None else None,
                raw_text_only=served.raw_text_only,
            )

        return await self._answer("Describe", run, context, None)

    async def generate(self, data: bytes, context: Context) -> None:
        async def run(caller: Caller) -> None:
            request = parse_frame(pb.GenerateRequest, data, self._services.frame_bytes)
            told = dict(context.invocation_metadata() or ()).get(TRACEPARENT)
            traceparent = told if isinstance(told, str) else ""
            await Generation(self._host, context.write, caller, traceparent).run(request)

        await self._answer("Generate", run, context, Right.GENERATE)

    async def embed(self, data: bytes, context: Context) -> pb.EmbedResponse:
        async def run(caller: Caller) -> pb.EmbedResponse:
            request = parse_frame(pb.EmbedRequest, data, self._services.frame_bytes)
            return await embed(self._host, caller, request)

        return await self._answer("Embed", run, context, Right.GENERATE)

    async def fetch_drafter(self, data: bytes, context: Context) -> None:
        async def run(caller: Caller) -> None:
            request = parse_frame(pb.FetchDrafterRequest, data, self._services.frame_bytes)
            if (files := self._host.drafter_files) is None:
                raise NotFoundError("This server has no files for clients.", hint="Give --model and --drafter.")
            writer = BoundedWriter(context.write, self._services.settings.write_seconds)
            await files.answer(request, writer.write, caller.owner)

        await self._answer("FetchDrafter", run, context, Right.FETCH)

    async def converse(self, frames: AsyncIterator[bytes], context: Context) -> None:
        async def run(caller: Caller) -> None:
            await ConverseStream(self._host, context.write, caller).run(frames)

        await self._answer("Converse", run, context, Right.CONVERSE)

    async def _answer(
        self, call: str, run: Callable[[Caller], Awaitable[Answer]], context: Context, right: Right | None
    ) -> Answer:
        """Runs a call; an error ends it with that error's status. `right`: that it needs; None: none."""
        peer, admission = context.peer(), self._host.admission
        owner = anonymous(peer).owner
        self._services.observer.on_call(call)
        try:
            certificate = certificate_name(context.auth_context())
            caller = await admission.admit(context.invocation_metadata() or (), peer, certificate, right)
            owner = caller.owner
            return await run(caller)
        except MoaError as error:
            refusal = error
            if admission.refusals.is_worth_a_line(error.code, owner, self._services.clock()):
                log.warning("call refused", call=call, code=error.code, reason=error.message, peer=peer)
        except Exception as error:
            refusal = InternalError(f"The server failed in this call ({type(error).__name__}).")
            log.exception("call failed", call=call, peer=peer)
        self._services.observer.on_refusal(refusal.code)
        return await context.abort(*error_status(refusal))


def certificate_name(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The subject's common name, else its first alternative name; empty: there was no certificate."""
    for name_field in ("x509_common_name", "x509_subject_alternative_name"):  # of gRPC's auth context
        for value in auth_context.get(name_field, ()):
            if name := plain_line(value.decode(errors="replace")):
                return name
    return ""


def own_version() -> str:
    try:
        return version("moa-split")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


READINESS = ("", SERVICE)
LIVENESS, STARTUP = "liveness", "startup"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(aio_health.HealthServicer):  # type: ignore[misc]  # the stubs do not know it
    def __init__(self) -> None:
        super().__init__()
        self._draining = False

    async def tell(self, *, hangs: bool) -> None:
        await self.set(STARTUP, SERVING)
        for name in (*(() if self._draining else READINESS), LIVENESS):
            await self.set(name, NOT_SERVING if hangs else SERVING)

    async def drain(self) -> None:
        """Says from now on that the server takes nothing new."""
        self._draining = True
        for name in READINESS:
            await self.set(name, NOT_SERVING)
