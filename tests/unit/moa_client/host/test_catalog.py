"""The models of several listed servers, in a world of these: listed, chosen, continued, refused, kept, and asked by programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock
from weakref import ref

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Ended, Failed, ModelsChanged, SurfaceEvent
from moa_client.conversation.options import AnswerOptions
from moa_client.endpoint.ask import HostModels
from moa_client.endpoint.endpoint import Endpoint, EndpointSettings
from moa_client.history.store import HistoryStore
from moa_client.host import catalog as catalog_module
from moa_client.host.catalog import FRESH_SECONDS, IDLE_SECONDS
from moa_client.host.host import Host, Reached, Started
from moa_client.host.library import LOOK_SECONDS, Library
from moa_client.host.surface_session import Watch
from moa_client.link.fleet import connect
from moa_client.servers import connecting
from moa_client.servers.book import ServerBook, ServerEntry
from moa_client.settings import ClientSettings
from moa_client.web.access import RequestError
from moa_shared.errors import ConflictError, UnavailableError
from moa_testing import World
from moa_testing.models import VOCAB, decode, device

from tests.support.answer_events import PlainTokenizer
from tests.support.messages import says
from tests.unit.moa_testing.stories import simulated

LARGE, TWIN = (pb.Identity(target_id=name, target_fingerprint=key, tokenizer_hash=b"k", execution=b"e") for name, key in (("large", b"o"), ("toy", b"w")))  # fmt: skip
OPTIONS = AnswerOptions(temperature=0, top_p=1, seed=3, max_tokens=12)
ALIASES = ("gpt-4o-mini=gpu", "large=toy", "lost=gone-7b", "own=default")  # of the second there is a model


class Toy(PlainTokenizer):
    """The same in the vocabulary of the toy target; `brackets`: around who speaks."""

    special_tokens = ()
    shown = staticmethod(decode)

    def __init__(self, brackets: str = "[]") -> None:
        self._brackets = str.maketrans("[]", brackets)

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        return [ord(character) % VOCAB for character in text.translate(self._brackets)]


TOY, LARGER = Toy(), Toy("<>")
read, read_by_larger = TOY.encode, LARGER.encode


def started(reached: Reached) -> Started:
    assert reached.served is not None
    held, identity = device(None), reached.served.identity
    files = cast("Any", SimpleNamespace(config={"vocab_size": VOCAB}, target_id=identity.target_id, fingerprint=""))
    toy = LARGER if identity.target_id == "large" else TOY
    target = replace(held.target, files=files, tokenizer=cast("Any", toy), identity=identity)
    return Started(replace(held, target=target), reached)


class Desk:
    """A device at home with the server `one`, as one surface of it has a conversation open."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.watch: Watch

    async def open(self, identifier: str | None = None) -> None:
        self.watch = await self.library.open(identifier, None)
        self.conversation, self._updates = self.watch.conversation, self.watch.updates()

    async def until(self, *kinds: type[SurfaceEvent]) -> Any:
        return await anext(update.event async for update in self._updates if isinstance(update.event, kinds))

    async def ask(self, question: str) -> tuple[str, list[int]]:
        """The answer, and all that its model has read before it."""
        self.conversation.task.ask(question, OPTIONS)
        return await self.answer()

    async def answer(self) -> tuple[str, list[int]]:
        await self.until(Ended)
        talk = self.conversation.engine.conversation
        return self.conversation.publisher.answers[-1].committed, talk.tokens[: len(talk.tokens) - len(talk.answer)]

    async def choose(self, name: str | None) -> Any:
        self.conversation.choose_model(name)
        return await self.until(ModelsChanged, Failed)


async def at_once(function: Any, *arguments: Any) -> Any:
    """In place of `asyncio.to_thread`: a thread knows nothing of virtual time."""
    return function(*arguments)


@asynccontextmanager
async def desk(world: World, *names: str, folder: Path | None = None, **more: Any) -> AsyncIterator[Desk]:
    """`names`: of servers that are listed besides; `more`: of entries of theirs."""
    entries = [ServerEntry(name, world.address(name), insecure=True, **more.get(name, {})) for name in ("one", *names)]
    book = ServerBook(tuple(entries), ("one",))

    def made(entry: ServerEntry, _: object) -> Any:
        connecting.security_of(entry)
        return world.server(entry.name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (catalog_module, connecting):
            patch.setattr(module, "read_book", lambda: book)
        patch.setattr(connecting, "make_server", made)
        patch.setattr(asyncio, "to_thread", at_once)
        patch.setattr(catalog_module, "find", AsyncMock())
        patch.setattr(catalog_module, "load", lambda settings, reached, *_: started(reached))
        async with AsyncExitStack() as stack, connect([world.server()]) as fleet:
            host = Host(ClientSettings(aliases=ALIASES), fleet, started(Reached(await fleet.describe(), 1.0)))
            stack.push_async_callback(host.close)
            store = HistoryStore(folder) if folder is not None else None
            here = Desk(Library(host, store))
            stack.push_async_callback(here.library.close)
            await here.open()
            yield here


def expected(world: World, prompt: Sequence[int]) -> str:
    return decode(world.target.answer(prompt, OPTIONS.settings()))


@simulated
async def test_a_conversation_continues_on_another_model_as_new_text_and_the_history_says_whose_answers_are_whose(
    world: World, tmp_path: Path
) -> None:
    world.start("gpu", identity=LARGE)
    async with desk(world, "gpu", folder=tmp_path) as here:
        name = here.conversation.facts.identifier
        first, prompt = await here.ask("a cat")
        assert (prompt, first) == (read("[user]a cat"), expected(world, prompt))
        here.conversation.task.ask("meanwhile", OPTIONS)
        here.conversation.choose_model("gpu")  # from the next question on
        here.conversation.task.ask("and its hat", OPTIONS)
        await here.until(ModelsChanged)
        other = here.conversation.publisher.answers[1].committed
        before = f"[user]a cat[assistant]{first}[user]meanwhile[assistant]{other}"
        second, prompt = await here.answer()
        assert (prompt, second) == (read_by_larger(f"{before}[user]and its hat"), expected(world, prompt))
        assert here.conversation.facts.target == "large"
        await here.choose("one")  # a server's name does as well
        assert (await here.ask("?"))[1] == read(f"{before}[user]and its hat[assistant]{second}[user]?")
        await here.choose("large")
        here.conversation.task.rewind(1)
        assert (await here.ask("again"))[1] == read_by_larger(f"[user]a cat[assistant]{first}[user]again")
    async with desk(world, "gpu", folder=tmp_path) as here:
        store = here.library._store
        assert store is not None
        stored = store.load(name)
        assert [(each.options.model, each.is_part) for each in stored.answers] == [("toy", False), ("", True)]
        assert (stored.origin.model, stored.origin.server) == ("large", world.address("gpu"))
        await here.watch.close()
        await here.open(name)
        assert here.conversation.facts.target == "large"
        text = stored.answers[1].tokens
        assert (await here.ask("so"))[1][: len(text)] == list(text)
    world.link("gpu").stop()
    async with desk(world, "gpu", folder=tmp_path) as here:
        with says(
            ConflictError, "The conversation is with large; this server has toy. No answer from gpu. Read it with"
        ):
            await here.open(name)


@simulated
async def test_all_models_are_listed_with_their_servers_aliases_and_who_does_not_answer(
    world: World, tmp_path: Path
) -> None:
    """Of two servers with one model is made one fleet; another model of the same name has its server's name besides."""
    world.start("gpu", identity=LARGE)
    world.start("spare", identity=LARGE)
    world.start("twin", identity=TWIN)
    names = ("gpu", "spare", "twin", "down", "locked")
    async with desk(world, *names, locked={"tls": True, "key_file": tmp_path / "none.key"}) as here:
        listed = await here.choose(None)
        assert (
            listed.model,
            [(name, about.replace(str(tmp_path), "TMP")) for name, about in listed.models],
        ) == snapshot(
            (
                "toy",
                [
                    ("toy", "one (10.0.0.1:12786)"),
                    ("large", "gpu, spare"),
                    ("toy@twin", "twin"),
                    ("gpt-4o-mini", "gpu"),
                    ("own", "default"),
                    ("down", "no answer: There is no moa server at down (10.0.0.1:30652): the connection was refused."),
                    ("locked", "no answer: There is no key file TMP/none.key."),
                ],
            )
        )
        catalog = here.library.catalog
        assert [each.name for each in await catalog.listed()] == snapshot(
            ["toy", "large", "toy@twin", "gpt-4o-mini", "own"]
        )
        guest = await catalog.host(await catalog.named("gpt-4o-mini"))
        assert [each.name for each in guest.link.servers] == ["gpu", "spare"]
        assert (await catalog.named("large")).servers == ("gpu", "spare")
        await asyncio.sleep(IDLE_SECONDS + 2 * LOOK_SECONDS)
        assert catalog.hosts == [here.library.host]  # nobody has used it


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "large",
            snapshot(
                "There is no moa server at gpu (10.0.0.1:55987): the connection was refused. Check --server HOST:PORT or `moa-client servers list`, and that moa-server runs there."
            ),
        ),
        (
            "down",
            snapshot(
                "There is no moa server at down (10.0.0.1:30652): the connection was refused. Check --server HOST:PORT or `moa-client servers list`, and that moa-server runs there."
            ),
        ),
        (
            "lost",
            snapshot(
                "'lost' stands for 'gone-7b': no server has it. No answer from down. Ask for 'toy', 'large', 'gpt-4o-mini', 'own', or 'default'."
            ),
        ),
        (
            "tou",
            snapshot(
                "There is no model 'tou' here. No answer from down. Ask for 'toy', 'large', 'gpt-4o-mini', 'own', or 'default'."
            ),
        ),
    ],
)
@simulated
async def test_a_model_that_cannot_be_had_is_refused_and_the_chat_stays_where_it_was(
    world: World, name: str, message: str
) -> None:
    world.start("gpu", identity=LARGE)
    async with desk(world, "gpu", "down") as here:
        await here.choose(None)
        world.link("gpu").stop()
        failed = await here.choose(name)
        assert isinstance(failed, Failed)
        assert str(failed.error) == message
        assert (await here.ask("a cat"))[0] == expected(world, read("[user]a cat"))
        endpoint = Endpoint(
            lambda: asyncio.sleep(0, HostModels(here.library.catalog)), EndpointSettings(), asyncio.Event()
        )
        with pytest.raises(RequestError) as refused:
            await endpoint.model(name)
        assert (refused.value.status, refused.value.code) == (
            (503, "unavailable") if name in ("large", "down") else (404, "model_not_found")
        )


@simulated
async def test_a_model_that_nobody_uses_is_freed_with_all_that_was_said_to_it(world: World) -> None:
    world.start("gpu", identity=LARGE)
    async with desk(world, "gpu") as here:
        await here.choose("large")
        await here.ask("a cat")
        held = ref(here.library.catalog.hosts[1])
        await here.choose("toy")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog_module, "trim_heap", lambda: freed.append(held() is None))
            freed: list[bool] = []
            await asyncio.sleep(IDLE_SECONDS + 2 * LOOK_SECONDS)
        assert freed == [True]


@simulated
async def test_who_is_offline_asks_nobody(world: World) -> None:
    world.start("gpu", identity=LARGE)
    async with desk(world, "gpu") as here:
        await here.choose(None)
        here.library.host.set_offline(True)
        await asyncio.sleep(FRESH_SECONDS)
        world.link("gpu").stop()
        assert [name for name, _ in (await here.choose(None)).models][:2] == ["toy", "large"]
        assert "You are offline" in str((await here.choose("large")).error)


@simulated
async def test_who_is_offline_in_one_chat_stays_so_on_another_model(world: World) -> None:
    """Whatever the other conversations are."""
    world.start("gpu", identity=LARGE)
    async with desk(world, "gpu") as here:
        here.conversation.engine.go_offline()
        assert "You are offline" in str((await here.choose("gpu")).error)
        here.conversation.engine.go_online()
        await here.choose("large")
        here.conversation.engine.go_offline()
        for name in ("toy", "large"):
            assert (await here.choose(name)).model == name
            assert here.conversation.engine.availability.wants_offline
        here.library.host.set_offline(True)
        here.conversation.engine.go_online()
        await here.choose("toy")
        assert (await here.ask("a cat"))[0] == expected(world, read("[user]a cat"))


@simulated
async def test_a_model_whose_server_hangs_holds_up_no_other_and_who_waits_for_it_waits_once(world: World) -> None:
    for name, identity in (("gpu", LARGE), ("twin", TWIN)):
        world.start(name, identity=identity)
    async with desk(world, "gpu", "twin") as here:
        catalog = here.library.catalog
        hanging, other = [await catalog.named(name) for name in ("large", "toy@twin")]
        world.link("gpu").cut()
        left, *waiting = [asyncio.create_task(catalog.host(hanging)) for _ in range(9)]
        await asyncio.sleep(0)
        left.cancel()
        assert await catalog.host(other) in catalog.hosts
        assert not any(each.done() for each in waiting)
        [error] = set(await asyncio.gather(*waiting, return_exceptions=True))
        assert isinstance(error, UnavailableError)
