"""The gRPC service: Describe, Generate, FetchDrafter, Converse. Turns calls into our objects, errors into statuses.

Requests of all but Describe arrive as bytes and are parsed by us, so that malformed ones get our own error messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import InternalError, MoaError, NotFoundError, UnavailableError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_status
from moa_shared.protocol.memory_codec import Codec

from moa_server.service.converse import ConverseStream
from moa_server.service.frames import parse
from moa_server.service.generate import Generation
from moa_server.service.host import Host
from moa_server.service.patient_writer import PatientWriter

log = structlog.get_logger()

SERVICE = "moa.v1.Moa"


class MoaService:
    """The calls of moa.v1.Moa."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a grpc.aio server registers."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
                ),
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate, None, pb.GenerateResponse.SerializeToString
                ),
                "FetchDrafter": grpc.unary_stream_rpc_method_handler(
                    self.fetch_drafter, None, pb.FetchDrafterResponse.SerializeToString
                ),
                "Converse": grpc.stream_stream_rpc_method_handler(
                    self.converse, None, pb.ServerFrame.SerializeToString
                ),
            },
        )

    async def describe(self, _: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.DescribeResponse:
        await self._wait_its_turn(context)
        host = self._host
        served = host.served
        return pb.DescribeResponse(
            protocol_version=PROTOCOL_VERSION,
            server_version=_version(),
            identity=served.identity,
            limits=host.limits,
            codecs=[pb.Codec.Name(codec) for codec in Codec] if served.drafters else [],
            execution=served.execution,
            drafters=served.drafters,
            step_ms=served.step_ms,
            row_ms=served.row_ms,
            manifest_sha256=host.drafter_files.manifest_sha256 if host.drafter_files is not None else b"",
        )

    async def generate(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async def run() -> None:
            request = parse(pb.GenerateRequest, data, self._host.frame_bytes)
            await Generation(self._host, _writing(context), client_of(context.peer())).run(request)

        await self._answer("Generate", run(), context)

    async def fetch_drafter(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async def run() -> None:
            request = parse(pb.FetchDrafterRequest, data, self._host.frame_bytes)
            if self._host.drafter_files is None:
                raise NotFoundError("This server has no files for clients.", hint="Give --model and --drafter.")
            writer = PatientWriter(_writing(context), self._host.settings.write_seconds)
            await self._host.drafter_files.answer(request, writer.write)

        await self._answer("FetchDrafter", run(), context)

    async def converse(self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        peer = context.peer()
        stream = ConverseStream(self._host, _writing(context), client_of(peer), self._host.allowances.of(peer))
        await self._answer("Converse", stream.run(frames), context)

    async def _wait_its_turn(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Holds a call back until its connection's allowance permits it."""
        allowance = self._host.allowances.of(context.peer())
        allowance.charge_call()
        if pause_seconds := allowance.pause_seconds:
            await asyncio.sleep(pause_seconds)

    async def _answer(
        self, call: str, plan: Coroutine[Any, Any, None], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Runs a call; an error ends it with that error's status."""
        try:
            await self._wait_its_turn(context)
        except asyncio.CancelledError:
            plan.close()
            raise
        try:
            await plan
            return
        except MoaError as error:
            refusal = error
            log.warning("call refused", call=call, code=error.code, reason=error.message, peer=context.peer())
        except Exception as error:
            refusal = InternalError(f"The server failed in this call ({type(error).__name__}).")
            log.exception("call failed", call=call, peer=context.peer())
        await context.abort(*error_status(refusal))


def client_of(peer: str) -> str:
    """A call's owner, as far as its address says: gRPC's name of the peer without the port."""
    return peer.rpartition(":")[0]


def _writing(context: grpc.aio.ServicerContext[Any, Any]) -> Callable[[Message], Awaitable[None]]:
    """Hands messages to gRPC; raises UnavailableError if the connection breaks meanwhile."""

    async def write(message: Message) -> None:
        try:
            await context.write(message)
        except grpc.aio.BaseError:
            raise UnavailableError("The connection to the client broke.") from None

    return write


def _version() -> str:
    try:
        return version("moa")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
