"""Keys of a fleet on Ray, over TLS: keys and their end reach all replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.access.keys import KeyBook, KeyEntry, changing, hash_of, new_key
from moa_shared.errors import AuthenticationError

from tests.cluster.asking import one_text
from tests.cluster.conftest import Fleet, bring_up
from tests.cluster.holder import Holder
from tests.support.certificates import Authority
from tests.support.messages import raises

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]

NAME = "guarded"
KEYS = "other", "revoked"


@dataclass(frozen=True)
class Guarded:
    """A fleet with keys and a certificate.

    Args:
        options: of `up`, which name them.
        authority: in PEM, that vouches for the replicas.
        keys: by name.
        key_file: that the replicas read.
    """

    fleet: Fleet
    options: tuple[object, ...]
    authority: Path
    keys: dict[str, str]
    key_file: Path

    @property
    def addresses(self) -> list[str]:
        return [each["address"] for each in self.fleet.status(NAME)["replicas"]]

    def server(self, address: str) -> Server:
        """As the program makes it with --tls-ca and --key-file."""
        security = Security(tls=True, authorities=self.authority, key=self.keys["other"])
        return Server(address, 5.0, 20.0, security)

    @asynccontextmanager
    async def holders(self, *names: str) -> AsyncIterator[list[list[Holder]]]:
        """Of each key, one at each replica."""
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes())
        async with AsyncExitStack() as opened:
            channels = [
                await opened.enter_async_context(grpc.aio.secure_channel(address, credentials))
                for address in self.addresses
            ]
            assert len(channels) == 2
            yield [[Holder(channel, self.keys[name]) for channel in channels] for name in names]


@pytest.fixture(scope="module")
def guarded(operator: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Another fleet on the Ray of all tests."""
    bring_up(operator)
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority()
    certificate, private_key = authority.issue().write(folder)
    keys = {name: new_key() for name in KEYS}
    entries = [KeyEntry(name, hash_of(key)) for name, key in keys.items()]
    with changing(folder / "keys.toml") as book:
        book[0] = KeyBook.of(entries)
    options = (
        "--name", NAME, "--port", 0, "--cpus", 0.25,
        "--tls-cert", certificate, "--tls-key", private_key, "--keys-file", folder / "keys.toml",
    )  # fmt: skip
    code, _, err = operator.command(*operator.up(*options))
    try:
        assert code == 0, err
        yield Guarded(operator, options, authority.write(folder), keys, folder / "keys.toml")
    finally:
        operator.command("down", "--name", NAME)


async def test_a_client_with_a_key_and_the_authority_gets_the_same_text_from_both(guarded: Guarded) -> None:
    first, second = [
        await one_text(guarded.fleet.model, guarded.server(address), seed=1) for address in guarded.addresses
    ]
    assert first == second
    assert len(first) == 400


async def test_a_revoked_key_is_refused_at_both_and_the_replicas_go_on(guarded: Guarded) -> None:
    before = guarded.fleet.status(NAME)["replicas"]
    async with guarded.holders("revoked", "other") as (revoked, other):
        for holder in revoked:
            await holder.describe()
        with changing(guarded.key_file) as book:
            book[0] = book[0].without("revoked")
        code, _, err = await guarded.fleet.meanwhile(*guarded.fleet.up(*guarded.options))
        assert code == 0, err
        for holder in revoked:
            with raises(
                AuthenticationError,
                snapshot(
                    "The server does not know this API key. Add the server again with its key: moa-client servers add NAME ADDRESS --tls --key-file FILE."
                ),
            ):
                await describe_until_refused(holder)
        for holder in other:
            await holder.describe()
    after = guarded.fleet.status(NAME)["replicas"]
    assert [each["process"] for each in after] == [each["process"] for each in before]


async def describe_until_refused(holder: Holder) -> None:
    while True:  # replicas read keys within a second
        await holder.describe()
