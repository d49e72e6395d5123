"""The models that this device can ask: those of all servers in the user's list, and a host for each that is in use.

State: what the listed servers have said, who are asked all at once, and the hosts. The one at home, of the servers in
use, lasts; another one begins when its model is asked for, and is closed when nobody has asked for long. Invariant: a
name means one model; the listed servers of one model that are not in use are one fleet.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, NotFoundError, UnavailableError
from moa_shared.programs.progress import Progress

from moa_client.conversation.events import ModelChanged, ModelsListed
from moa_client.device.loading import trim_heap
from moa_client.device.sources import AUTO, FILELESS
from moa_client.host.host import Host, find, load, reach
from moa_client.host.text_conversation import TextConversation
from moa_client.link.server import serves
from moa_client.servers.book import read_book
from moa_client.servers.connecting import ASK_SECONDS, connect_servers, describe_now
from moa_client.settings import read_kept

FRESH_SECONDS = 2.0  # what servers have said is good for so long: programs may list models often
IDLE_SECONDS = 300.0  # a host without conversations is closed after that, as a stream without questions is
MOST_WORDS = 300  # characters about a name
Key = tuple[bytes, bytes]  # fingerprint of a model's weights, hash of its tokenizer


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model. `servers`: their names in the list; none: those in use."""

    name: str
    key: Key
    context_tokens: int
    servers: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        return self.key[0].hex()


@dataclass(eq=False, slots=True)
class Guest:
    """The host of a model that is not at home. `stack`: closes it, and its link."""

    model: ListedModel
    host: Host
    stack: AsyncExitStack
    used_at: float


class Catalog:
    def __init__(self, home: Host) -> None:
        self.home = home
        self._others: list[ListedModel] = []
        self._said: dict[str, pb.DescribeResponse] = {}  # by servers, the newest
        self._absent: dict[str, str] = {}  # servers that have not answered when they were asked last, and why
        self._guests: dict[Key, Guest] = {}
        self._looked_at = -math.inf
        self._looking, self._opening = asyncio.Lock(), asyncio.Lock()

    @property
    def hosts(self) -> Sequence[Host]:
        return [self.home, *(guest.host for guest in self._guests.values())]

    @property
    def _aliases(self) -> Mapping[str, str]:
        return dict(alias.split("=", 1) for alias in self.home.settings.aliases)

    @property
    def own(self) -> ListedModel:
        target = self.home.device.target
        return ListedModel(target.files.target_id, key_of(target.identity), target.context_tokens)

    @property
    def models(self) -> Sequence[ListedModel]:
        return [self.own, *self._others]

    async def listed(self) -> Sequence[ListedModel]:
        """The models that can be had now, and those again that have an alias, by that."""
        await self._look()
        here = {each.name: each for each in self.models if not each.servers or self._answering(each)}
        for alias in self._aliases:
            if (model := self._known(alias)) is not None and model.name in here:
                here.setdefault(alias, replace(model, name=alias))
        return list(here.values())

    async def named(self, name: str) -> ListedModel:
        """The model of a name, of an alias, or of a server; empty: that at home. NotFoundError: there is none."""
        if name in ("", self.own.name):
            return self.own
        if (found := self._known(name)) is None or self._looked_at == -math.inf:
            await self._look()
            found = self._known(name)
        if found is not None:
            return found
        if (meant := self._aliases.get(name, name)) in self._absent:
            raise UnavailableError(self._absent[meant], hint="Choose another model: /model lists them.")
        words = (
            f"There is no model {name!r} here."
            if meant == name
            else f"{name!r} stands for {meant!r}: no server has it."
        )
        absent = f" No answer from {', '.join(self._absent)}." if self._absent else ""
        raise NotFoundError(words[:MOST_WORDS] + absent, hint="/model lists the models that there are.")

    async def host(self, model: ListedModel) -> Host:
        """The host of a model, which begins if it must; MoaError: its servers do not answer, or it cannot be loaded."""
        if not model.servers:
            return self.home
        async with self._opening:
            if model.key not in self._guests:
                self._guests[model.key] = await self._open(model)
            guest = self._guests[model.key]
        guest.used_at = time.monotonic()
        return guest.host

    async def host_with(self, key: Key) -> Host | None:
        """The host of a model that a listed server has; None: none has it."""
        if key not in self._guests:
            await self._look()
        model = next((each for each in self._others if each.key == key), None)
        return None if model is None else await self.host(model)

    async def choose(self, conversation: TextConversation, name: str | None) -> None:
        """Has another model continue a conversation; without a name, tells it which there are."""
        if name is None:
            await self._look()
            guests = self._guests.values()
            now = next((each.model.name for each in guests if conversation in each.host.conversations), self.own.name)
            conversation.publisher.publish(ModelsListed(self._rows(), now))
            return
        model = await self.named(name)
        host = await self.host(model)
        if conversation not in host.conversations:
            await conversation.move(host.engine(conversation.facts.identifier))
            for each in self.hosts:
                each.release(conversation)
            host.conversations.append(conversation)
        conversation.publisher.publish(ModelChanged(model.name))

    async def leave(self, conversation: TextConversation) -> None:
        for host in self.hosts:
            await host.leave(conversation)

    async def close_idle(self, seconds: float = IDLE_SECONDS) -> None:
        """Closes the hosts without conversations that nobody has asked for so long."""
        now = time.monotonic()
        for key, guest in list(self._guests.items()):
            if guest.host.conversations:
                guest.used_at = now
            elif now - guest.used_at >= seconds:
                del self._guests[key]
                await guest.stack.aclose()
                trim_heap()

    async def close(self) -> None:
        for guest in self._guests.values():
            await guest.stack.aclose()

    def _known(self, name: str) -> ListedModel | None:
        """What has the name; a model comes before an alias, and that before a server."""
        meant = self._aliases.get(name, name)
        by_name = {each.name: each for each in self.models}
        by_server = {server: each for each in self._others for server in each.servers}
        return by_name.get(name) or by_name.get(meant) or by_server.get(meant)

    def _answering(self, model: ListedModel) -> Sequence[str]:
        return [server for server in model.servers if server not in self._absent]

    def _rows(self) -> tuple[tuple[str, str], ...]:
        """What there is to choose, with words about each."""
        rows = {self.own.name: ", ".join(each.label for each in self.home.link.servers)}
        for model in self._others:
            rows[model.name] = ", ".join(self._answering(model)) or f"no answer: {self._absent[model.servers[0]]}"
        for alias, meant in self._aliases.items():
            rows.setdefault(alias, meant if self._known(meant) is not None else f"{meant}: no server has it")
        has = {server for model in self._others for server in model.servers}
        rows |= {server: f"no answer: {why}" for server, why in self._absent.items() if server not in has}
        return tuple(rows.items())

    async def _look(self) -> None:
        """Asks the listed servers what they have, unless that was a moment ago, or the user wants none."""
        async with self._looking:
            home = self.home
            if home.is_offline or time.monotonic() < self._looked_at + FRESH_SECONDS:
                return
            needs = home.device.target.identity
            own = {each.address for each in home.link.servers if each.served is None or serves(each.served, needs)}
            others = [each for each in read_book().entries if each.address not in own]
            asked = (describe_now(each, home.settings, ASK_SECONDS) for each in others)
            said = zip(others, await asyncio.gather(*asked, return_exceptions=True), strict=True)
            self._looked_at, self._absent, models = time.monotonic(), {}, dict[Key, ListedModel]()
            names = {self.own.name}
            for entry, answer in said:
                if isinstance(answer, pb.DescribeResponse):
                    self._said[entry.name] = answer
                elif isinstance(answer, MoaError):
                    self._absent[entry.name] = answer.message
                else:
                    raise answer
                if (served := self._said.get(entry.name)) is None:
                    continue
                key, name = key_of(served.identity), served.identity.target_id
                if (known := models.get(key)) is not None:
                    models[key] = replace(known, servers=(*known.servers, entry.name))
                else:
                    name = f"{name}@{entry.name}" if name in names else name
                    models[key] = ListedModel(name, key, served.limits.context_tokens, (entry.name,))
                    names.add(name)
            self._others = list(models.values())

    async def _open(self, model: ListedModel) -> Guest:
        home = self.home.settings
        if self.home.is_offline:
            raise UnavailableError("You are offline: another model cannot be asked.", hint="/online connects again.")
        settings = replace(
            home,
            server=",".join(model.servers),
            model="",  # what these name is for the model at home
            drafter=home.drafter if home.drafter in (AUTO, "default", "deep", *FILELESS) else AUTO,
            companion=home.companion if home.companion in (AUTO, read_kept()) else "",
            offline=False,
        )
        async with AsyncExitStack() as stack:
            settings, link = await stack.enter_async_context(connect_servers(settings))
            reached, progress = await reach(settings, link), Progress()
            if reached.served is None or key_of(reached.served.identity) != model.key:
                gone = f"{link.shown.label} does not serve {model.name} any more."
                raise reached.absent or UnavailableError(gone, hint="/model lists what there is now.")
            sources = await find(settings, link, reached, progress)
            started = await asyncio.to_thread(load, settings, reached, sources, progress)
            host = Host(settings, link, started, self.home.observer)
            stack.push_async_callback(host.close)
            return Guest(model, host, stack.pop_all(), time.monotonic())


def key_of(identity: pb.Identity) -> Key:
    return identity.target_fingerprint, identity.tokenizer_hash
