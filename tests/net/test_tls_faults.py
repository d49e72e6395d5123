"""Faults of TLS over real sockets: what the client says, what the server logs, and what goes on as if nothing were."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import LinkState
from moa_client.doctor import check_tls
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.access.keys import Gate, KeyBook, KeyEntry, hash_of
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.errors import AuthenticationError, MoaError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, watch
from tests.net.server_peer import VOCAB, make_host, plain_text, serving, until
from tests.support.certificates import Authority, Pair
from tests.support.messages import says, steady

SETTINGS = AnswerSettings(max_tokens=12, ignore_end_of_text=True)
KEY = "moa_" + "k" * 43
LONG = AnswerSettings(max_tokens=150, ignore_end_of_text=True)


@asynccontextmanager
async def tls_server(
    target: Target, folder: Path, pair: Pair, client_ca: Path | None = None, **settings: Any
) -> AsyncIterator[RunningServer]:
    certificate, key = pair.write(folder)
    host = make_host(target, tls_cert=certificate, tls_key=key, tls_client_ca=client_ca, **settings)
    async with serving(host) as running:
        yield running


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    return authority.write(tmp_path)


async def refusal(port: int, security: Security, host: str = "127.0.0.1") -> str:
    """What a client says that gets nowhere."""
    async with connect([Server(f"{host}:{port}", 5.0, 20.0, security)]) as link:
        try:
            await link.describe()
        except MoaError as error:
            return steady(str(error))
        return ""


async def test_a_conversation_over_tls_with_a_key(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    """A key that is missing or wrong is not tried again and again."""
    gate = Gate(fixed=KeyBook.of([KeyEntry("ada", hash_of(KEY))]))
    async with tls_server(target, tmp_path, authority.issue(), gate=gate) as running:
        for host, key in (("127.0.0.1", KEY), ("localhost", KEY), ("127.0.0.1", ""), ("127.0.0.1", "wrong")):
            secure = Security(tls=True, authorities=trusted, key=key)
            async with connect([Server(f"{host}:{running.port}", 5.0, 20.0, secure)]) as link:
                engine, screen = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4), Screen()
                try:
                    if key == KEY:
                        await watch(engine, screen, PROMPT, SETTINGS)
                        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
                        continue
                    words = "Add the server again with its key"
                    with says(AuthenticationError, words):
                        await link.describe()
                    with says(AuthenticationError, words):
                        await watch(engine, screen, PROMPT, SETTINGS)
                finally:
                    await engine.close()


async def test_certificates_that_are_not_accepted(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named, so that a user knows whom to ask."""
    secure = Security(tls=True, authorities=trusted)
    said = {}
    async with tls_server(target, tmp_path, authority.issue(names=("gpu.example",))) as running:
        said["name"] = await refusal(running.port, secure)
    async with tls_server(target, tmp_path, Authority("other").issue()) as running:
        said["authority"] = await refusal(running.port, secure)
    monkeypatch.setattr("moa_server.tls._check_dates", lambda *_: None)  # it would not start
    async with tls_server(target, tmp_path, authority.issue(days=-1)) as running:
        said["expired"] = await refusal(running.port, secure)
    assert said == snapshot(
        {
            "name": "The server at 127.0.0.1:PORT cannot be used: its certificate is for another name. Use the name or address that the certificate is for, or have a certificate made for this one.",
            "authority": "The server at 127.0.0.1:PORT cannot be used: nobody whom this device trusts vouches for its certificate. Name the certificate of the authority that does with --tls-ca FILE.",
            "expired": "The server at 127.0.0.1:PORT cannot be used: its certificate has expired. Whoever runs the server must renew it; or this device's clock is wrong.",
        }
    )


async def test_a_client_without_tls_at_a_port_of_tls(target: Target, authority: Authority, tmp_path: Path) -> None:
    async with tls_server(target, tmp_path, authority.issue()) as running:
        assert "it speaks TLS only, or no gRPC, or has no room" in await refusal(running.port, Security())
        assert running.host.admission.connections.made == 0


async def test_clients_that_must_show_a_certificate(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    async with tls_server(target, tmp_path, authority.issue(), client_ca=trusted) as running:

        def showing(pair: Pair, name: str) -> Security:
            certificate, key = pair.write(tmp_path, name)
            return Security(tls=True, authorities=trusted, certificate=certificate, private_key=key)

        said = {
            "none": await refusal(running.port, Security(tls=True, authorities=trusted)),
            "of another authority": await refusal(running.port, showing(Authority("other").issue("eve"), "eve")),
            "good": await refusal(running.port, showing(authority.issue("alice"), "alice")),
        }
        assert said == snapshot(
            {
                "none": "The server at 127.0.0.1:PORT cannot be used: it wants a certificate of this device. Ask whoever runs the server for one, and name it with --tls-cert FILE --tls-key FILE.",
                "of another authority": "The server at 127.0.0.1:PORT cannot be used: it does not accept this device's certificate. Ask whoever runs the server for one that has not expired, of an authority that it knows (its --tls-client-ca).",
                "good": "",
            }
        )
        with says(
            UnavailableError,
            "The server cannot be used: it wants a certificate of this device",
        ):  # the doctor
            await check_tls(f"127.0.0.1:{running.port}", Security(tls=True, authorities=trusted))


async def test_a_renewed_certificate_is_used_by_the_next_connection_and_harms_no_open_one(
    target: Target, authority: Authority, trusted: Path, tmp_path: Path
) -> None:
    secure = Security(tls=True, authorities=trusted)
    async with tls_server(target, tmp_path, authority.issue()) as running:
        address = f"127.0.0.1:{running.port}"
        async with connect([Server(address, 5.0, 20.0, secure)]) as link:
            engine, screen = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4), Screen()
            try:
                answering = asyncio.create_task(watch(engine, screen, PROMPT, LONG))
                await until(lambda: bool(screen.committed))
                authority.issue(names=("gpu.example",)).write(tmp_path)  # the client can tell it from the first
                assert running.tls is not None
                running.tls.refresh(at_once=True)
                assert "its certificate is for another name" in await refusal(running.port, secure)
                await answering
                assert LinkState.OFFLINE not in screen.states
                assert screen.committed == plain_text(target, PROMPT, LONG)[0]
            finally:
                await engine.close()


async def test_a_renewed_authority(target: Target, authority: Authority, trusted: Path, tmp_path: Path) -> None:
    """The server has a new authority first, then the device: the same link connects again by itself."""
    secure = Security(tls=True, authorities=trusted)
    async with tls_server(target, tmp_path, authority.issue()) as running:
        link = Server(f"127.0.0.1:{running.port}", 5.0, 20.0, secure)
        try:
            renewed = Authority("renewed")
            renewed.issue().write(tmp_path)
            assert running.tls is not None
            running.tls.refresh(at_once=True)
            assert "nobody whom this device trusts" in await refusal(running.port, secure)
            with says(
                UnavailableError,
                "The server cannot be reached: nobody whom this device trusts vouches for its",
            ):  # what a conversation says that comes back
                await link.open(pb.Open())
            renewed.write(tmp_path)
            with says(UnavailableError, "cannot be used: nobody whom this device trusts"):
                await link.describe()  # over the connection that has failed; the next one is new
            await link.describe()
        finally:
            await link.close()


async def test_tls_below_1_2_is_refused(target: Target, authority: Authority, tmp_path: Path) -> None:
    async with tls_server(target, tmp_path, authority.issue()) as running:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.transport.abort()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
