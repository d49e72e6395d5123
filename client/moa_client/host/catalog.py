"""The models that this device can ask: those of all servers in the user's list, and a host for each that is in use.

State: what the listed servers have said, who are asked all at once, and the hosts. The one at home, of the servers in
use, lasts; another begins when its model is asked for, and is closed when nobody has asked for long. Invariant: a name
means one model; listed servers of one model that are not in use are one fleet.
"""

import asyncio
import gc
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, NotFoundError, UnavailableError
from moa_shared.programs.progress import Progress

from moa_client.conversation.events import ModelsChanged
from moa_client.device.loading import trim_heap
from moa_client.device.sources import AUTO, FILELESS
from moa_client.host.host import Host, find, load, reach
from moa_client.host.text_conversation import TextConversation
from moa_client.link.server import serves
from moa_client.servers.book import read_book
from moa_client.servers.connecting import ASK_SECONDS, connect_servers, describe_server
from moa_client.settings import DEFAULT_MODEL, read_kept

FRESH_SECONDS = 2.0  # what servers have said is good for so long: programs may list models often
IDLE_SECONDS = 300.0  # a host without conversations is closed after that, as a stream without questions is
MOST_NAME = 200  # characters in an error
ABSENT = (None, "")
Key = tuple[bytes, bytes]  # fingerprint of a model's weights, hash of its tokenizer


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model. `servers`: their names in the list; none: those in use."""

    name: str
    key: Key
    context_tokens: int
    servers: tuple[str, ...] = ()


class Catalog:
    def __init__(self, home: Host) -> None:
        self.home = home
        self._others: Sequence[ListedModel] = ()
        self._said: dict[str, pb.DescribeResponse] = {}  # by servers, the newest
        self._absent: dict[str, str] = {}  # servers that have not answered when they were asked last, and why
        self._guests: dict[Key, tuple[Host, AsyncExitStack]] = {}
        self._aliases = dict(alias.split("=", 1) for alias in home.settings.aliases)
        self._looked_at = -math.inf
        self._looking = asyncio.Lock()
        self._opening: dict[Key, asyncio.Task[None]] = {}  # whoever asks for the model meanwhile waits for the same

    @property
    def hosts(self) -> Sequence[Host]:
        return [self.home, *(host for host, _ in self._guests.values())]

    @property
    def _models(self) -> Sequence[ListedModel]:
        """That at home is the first."""
        target = self.home.device.target
        own = ListedModel(target.files.target_id, key_of(target.identity), target.context_tokens)
        return [own, *self._others]

    @property
    def _other_names(self) -> Mapping[str, str]:
        """The names of models by those of their servers, and by the one that any program may use."""
        own = dict.fromkeys((DEFAULT_MODEL, *(each.name for each in self.home.link.servers)), self._models[0].name)
        return own | {server: each.name for each in self._others for server in each.servers}

    @property
    def silent(self) -> str:
        """Which listed servers have not answered, as a sentence after another; empty: all have."""
        return f" No answer from {', '.join(self._absent)}." if self._absent else ""

    async def listed(self) -> Sequence[ListedModel]:
        """The models that can be had now, and those again that have an alias, by that."""
        await self._look()
        return [replace(model, name=name) for name, (model, _) in self._menu().items() if model is not None]

    async def named(self, name: str, *, is_offline: bool | None = None) -> ListedModel:
        """The model of a name, of an alias, or of a server. NotFoundError: there is none.

        `is_offline`: whoever asks wants no server, here and below; None: as all conversations are.
        """
        if name in (DEFAULT_MODEL, self._models[0].name):
            return self._models[0]
        if self._looked_at == -math.inf or self._menu().get(name, ABSENT)[0] is None:
            await self._look(is_offline)
        menu = self._menu()
        model, about = menu.get(name) or menu.get(self._other_names.get(name, ""), ABSENT)
        if model is not None:
            return model
        if about:
            raise UnavailableError(about)
        if self._looked_at == -math.inf:  # nobody was asked
            raise _offline()
        meant, name = self._aliases.get(name), name[:MOST_NAME]
        words = f"{name!r} stands for {meant!r}: no server has it." if meant else f"There is no model {name!r} here."
        names = ", ".join(repr(name) for name, (model, _) in menu.items() if model is not None)
        raise NotFoundError(words + self.silent, hint=f"Ask for {names}, or {DEFAULT_MODEL!r}.")

    async def host(self, model: ListedModel, *, is_offline: bool | None = None) -> Host:
        """The host of a model, which begins if it must; MoaError: its servers do not answer, or it cannot be loaded."""
        if not model.servers:
            return self.home
        if (key := model.key) not in self._guests:
            if self._wants_none(is_offline):
                raise _offline()
            if key not in self._opening:
                self._opening[key] = asyncio.create_task(self._open(model))
                self._opening[key].add_done_callback(lambda _: self._opening.pop(key))
            await asyncio.shield(self._opening[key])
        host, _ = self._guests[key]
        host.used_at = time.monotonic()
        return host

    async def host_with(self, key: Key) -> Host | None:
        """The host of a model that a listed server has; None: none has it."""
        await self._look()
        model = next((each for each in self._others if each.key == key), None)
        return None if model is None else await self.host(model)

    async def choose(self, conversation: TextConversation, name: str | None) -> None:
        """Has another model continue a conversation; without a name, tells it which there are."""
        is_offline = conversation.engine.availability.wants_offline
        if name is None:
            await self._look(is_offline)
            keys = [key for key, (host, _) in self._guests.items() if conversation in host.conversations]
            now = next((each.name for each in self._others if each.key in keys), conversation.facts.target)
            rows = ((name, about if model else f"no answer: {about}") for name, (model, about) in self._menu().items())
            conversation.publisher.publish(ModelsChanged(now, tuple(rows)))
            return
        model = await self.named(name, is_offline=is_offline)
        host = await self.host(model, is_offline=is_offline)
        if conversation not in host.conversations:
            await conversation.move(host.engine(conversation.facts.identifier))
            for each in self.hosts:
                each.release(conversation)
            host.conversations.append(conversation)
        conversation.publisher.publish(ModelsChanged(model.name))

    async def leave(self, conversation: TextConversation) -> None:
        for host in self.hosts:
            await host.leave(conversation)

    async def close(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for _, stack in self._guests.values():
            await stack.aclose()

    async def close_idle(self) -> None:
        """Closes the hosts without conversations that nobody has asked for long."""
        now = time.monotonic()
        for key, (host, stack) in list(self._guests.items()):
            if host.conversations:
                host.used_at = now
            elif now - host.used_at >= IDLE_SECONDS:
                del self._guests[key]
                await stack.aclose()
                asyncio.get_running_loop().call_soon(_free)  # once nothing here holds the host

    def _menu(self) -> Mapping[str, tuple[ListedModel | None, str]]:
        """What there is by name, with words about it; None: it does not answer. A model goes before an alias."""
        own, *others = self._models
        menu: dict[str, tuple[ListedModel | None, str]]
        menu = {own.name: (own, ", ".join(each.label for each in self.home.link.servers))}
        for model in others:
            here = ", ".join(each for each in model.servers if each not in self._absent)
            menu[model.name] = (model, here) if here else (None, self._absent[model.servers[0]])
        for alias, meant in self._aliases.items():
            found, about = menu.get(meant) or menu.get(self._other_names.get(meant, ""), ABSENT)
            if about:
                menu.setdefault(alias, (found, meant if found is not None else about))
        listed = {server for each in others for server in each.servers}
        return menu | {server: (None, why) for server, why in self._absent.items() if server not in listed}

    def _wants_none(self, is_offline: bool | None) -> bool:
        return self.home.is_offline if is_offline is None else is_offline

    async def _look(self, is_offline: bool | None = None) -> None:
        """Asks the listed servers what they have, unless that was a moment ago, or the user wants none."""
        async with self._looking:
            home = self.home
            if self._wants_none(is_offline) or time.monotonic() < self._looked_at + FRESH_SECONDS:
                return
            needs = home.device.target.identity
            own = {each.address for each in home.link.servers if each.served is None or serves(each.served, needs)}
            others = [each for each in read_book().entries if each.address not in own]
            asked = (describe_server(each, home.settings, ASK_SECONDS) for each in others)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            self._looked_at, self._absent, models = time.monotonic(), {}, dict[Key, ListedModel]()
            names = {self._models[0].name}
            for entry, answer in zip(others, answers, strict=True):
                if isinstance(answer, pb.DescribeResponse):
                    self._said[entry.name] = answer
                elif isinstance(answer, MoaError):
                    self._absent[entry.name] = answer.message
                else:
                    raise answer
                if (served := self._said.get(entry.name)) is not None:
                    key, name = key_of(served.identity), served.identity.target_id
                    name = f"{name}@{entry.name}" if name in names else name
                    known = models.get(key) or ListedModel(name, key, served.limits.context_tokens)
                    models[key] = replace(known, servers=(*known.servers, entry.name))
                    names.add(known.name)
            self._others = list(models.values())

    async def _open(self, model: ListedModel) -> None:
        """Begins a host, and keeps with it what closes it with its link."""
        home = self.home.settings  # of which a path is for the model at home
        drafter = home.drafter if home.drafter in (AUTO, "default", "deep", *FILELESS) else AUTO
        companion = home.companion if home.companion in (AUTO, read_kept()) else ""
        settings = replace(home, server=",".join(model.servers), model="", drafter=drafter, companion=companion)
        async with AsyncExitStack() as stack:
            settings, link = await stack.enter_async_context(connect_servers(replace(settings, offline=False)))
            reached, progress = await reach(settings, link), Progress()
            if reached.served is None or key_of(reached.served.identity) != model.key:
                raise reached.absent or UnavailableError(f"{link.shown.label} serves another model now.")
            sources = await find(settings, link, reached, progress)
            started = await asyncio.to_thread(load, settings, reached, sources, progress)
            host = Host(settings, link, started, self.home.observer)
            stack.push_async_callback(host.close)
            host.used_at = time.monotonic()
            self._guests[model.key] = host, stack.pop_all()


def _free() -> None:
    """Frees a host that conversations have had, which hold it and each other (a daemon of 80,000 objects: 80 ms)."""
    gc.collect()
    trim_heap()


def key_of(identity: pb.Identity) -> Key:
    return identity.target_fingerprint, identity.tokenizer_hash


def _offline() -> UnavailableError:
    return UnavailableError("You are offline: another model cannot be asked.", hint="/online connects again.")
