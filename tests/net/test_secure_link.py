"""TLS and API keys between the client and a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.errors import AuthenticationError, ConfigError, UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, watch
from tests.net.server_peer import VOCAB, make_host, plain_text, serving
from tests.support.messages import raises
from tests.support.secure_server import secured

SETTINGS = AnswerSettings(max_tokens=12, ignore_end_of_text=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_conversation_over_tls_with_a_key(target: Target, trusted: Path, host: str) -> None:
    async with (
        secured(make_host(target), key="abc") as port,
        connect([Server(f"{host}:{port}", 5.0, 20.0, Security(tls=True, authorities=trusted, key="abc"))]) as link,
    ):
        assert (await link.describe()).identity.target_id == "tiny"
        engine, screen = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4), Screen()
        try:
            await watch(engine, screen, PROMPT, SETTINGS)
        finally:
            await engine.close()
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]


async def test_a_certificate_of_a_stranger_is_refused(target: Target) -> None:
    async with (
        secured(make_host(target)) as port,
        connect([Server(f"127.0.0.1:{port}", 5.0, 20.0, Security(tls=True))]) as link,
    ):
        with raises(
            UnavailableError,
            snapshot(
                "The server at 127.0.0.1:PORT cannot be used: nobody whom this device trusts vouches for its certificate. Name the certificate of the authority that does with --tls-ca FILE."
            ),
        ):
            await link.describe()


async def test_a_server_without_tls_is_refused(target: Target, trusted: Path) -> None:
    async with (
        serving(make_host(target)) as running,
        connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0, Security(tls=True, authorities=trusted))]) as link,
    ):
        with raises(
            UnavailableError,
            snapshot(
                "The server at 127.0.0.1:PORT cannot be used: what listens there does not speak TLS. Leave --tls out, or use the port on which the server speaks TLS."
            ),
        ):
            await link.describe()


async def test_a_server_of_tls_is_refused_without_it(target: Target) -> None:
    async with secured(make_host(target)) as port, connect([Server(f"127.0.0.1:{port}", 5.0, 20.0)]) as link:
        with raises(
            UnavailableError,
            snapshot(
                "The server at 127.0.0.1:PORT cannot be used: it speaks TLS only. Connect with --tls, or with --tls-ca FILE if the server has an authority of its own."
            ),
        ):
            await link.describe()


@pytest.mark.parametrize("key", ["", "wrong"])
async def test_a_key_that_is_missing_or_wrong_ends_the_question(target: Target, trusted: Path, key: str) -> None:
    """It is not tried again and again."""
    async with (
        secured(make_host(target), key="abc") as port,
        connect([Server(f"127.0.0.1:{port}", 5.0, 20.0, Security(tls=True, authorities=trusted, key=key))]) as link,
    ):
        words = snapshot(
            "The server does not accept this client's API key, or wants one. Add the server again with its key: moa-client servers add NAME ADDRESS --tls --key-file FILE."
        )
        with raises(AuthenticationError, words):
            await link.describe()
        engine = ClientEngine(link, device(target, "none"), VOCAB, Codec.INT4)
        try:
            with raises(AuthenticationError, words):
                await watch(engine, Screen(), PROMPT, SETTINGS)
        finally:
            await engine.close()


async def test_a_key_is_not_sent_in_the_clear() -> None:
    with raises(
        ConfigError,
        snapshot(
            "The API key for gpu.example:50051 would be sent without encryption. Add the server with --tls or --tls-ca FILE, or without a key."
        ),
    ):
        Server("gpu.example:50051", 5.0, 20.0, Security(key="abc"))
