"""What the engine does about a server that was replaced by one with another drafter, or with another model.

State: the task that asks such a server what it is, the task that gets its drafter, and what the reader was told.
Another drafter costs the conversation its drafts until it is here; another model makes it wait as for a server that is
away. Invariant: no stream is opened to a server that has refused one before the server has said what it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError, OverloadedError, UnavailableError
from moa_shared.protocol.handshake_checks import check_identity

from moa_client.conversation.events import DrafterChanged, ServerChanged
from moa_client.device.loading import Device
from moa_client.engine.resuming import ServerSession
from moa_client.link.availability import NOTHING, Reaction
from moa_client.link.connection import Backoff, StreamLost

STRANGER_SECONDS = 10.0  # between questions to another model's server; a new question and /online do not wait
Refit = Callable[[pb.DescribeResponse, Device, float], Awaitable[Device | None]]
Adopt = Callable[[pb.DescribeResponse, Device], Awaitable[Device]]


class ReplacedServer:
    """How one conversation continues with a server that was replaced.

    `refit` gets the drafter of a server, and `adopt` makes the device for a server's model where a companion stands in
    for any; None: nothing does.
    """

    def __init__(self, session: ServerSession, refit: Refit | None, adopt: Adopt | None) -> None:
        self._session = session
        self._own = session.own
        self._dialer = session.connection.dialer
        self._refit = refit
        self._adopt = adopt
        self._asking: asyncio.Task[None] | None = None
        self._fitting: asyncio.Task[None] | None = None
        self._refusal: StreamLost | None = None  # the newest
        self._was_recognised = False  # since a stream was open
        self._reported = ""  # about the server that is there
        self._tried: frozenset[bytes] | None = None  # fingerprints of drafters: one is here, or none can be used

    def on_mismatch(self, refusal: StreamLost) -> None:
        """The server refuses to open a stream, because it does not hold what this conversation needs."""
        self.stop_asking()
        self._refusal, self._reported = refusal, ""
        self._asking = asyncio.create_task(self._ask())

    def on_opened(self) -> None:
        self.stop_asking()
        self._was_recognised = False
        drafting = self._own.device.drafting
        is_fitting = self._fitting is not None and not self._fitting.done()
        if self._refit is not None and drafting is not None and drafting.is_refused and not is_fitting:
            self._fitting = asyncio.create_task(self._fit(self._refit))

    def stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def close(self) -> None:
        tasks = [task for task in (self._asking, self._fitting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ what the tasks find out, on the engine's loop

    def _post(self, found: Callable[[], Reaction | None], *, while_asking: bool = True) -> None:
        self._session.inbox.put_nowait(lambda: (found() if self._asking or not while_asking else None) or NOTHING)

    def _on_recognised(self, served: pb.DescribeResponse) -> Reaction | None:
        """The server has the conversation's model: what else did it refuse?"""
        self.stop_asking()
        fingerprint = self._own.device.identity.drafter_fingerprint
        if fingerprint and fingerprint not in _offered(served):
            self._own.refuse_drafter()
            self._say(_drafter_words(served))
        elif self._was_recognised and self._refusal is not None:
            self._was_recognised = False
            return self._session.on_lost(self._refusal)  # twice, and it does not say why
        self._was_recognised = True
        self._session.connect()
        return None

    def _on_target(self, device: Device) -> None:
        """The server's model can continue what a companion has begun; the device is for that model."""
        self.stop_asking()
        companion = self._own.device.target.files.target_id
        self._own.adopt(device)
        label, target = self._dialer.server.label, device.target.files.target_id
        message = f"{label} serves {target}, which continues what {companion} on this device has written."
        self._session.answers.events.append(ServerChanged("address", message))
        self._session.connect()

    def _on_absent(self, error: MoaError) -> Reaction:
        """The server cannot continue the conversation, or has not said what it is."""
        answers = self._session.answers
        if isinstance(error, MismatchError) and error.message != self._reported:
            self._reported = error.message
            answers.events.append(ServerChanged("model", str(error)))
        return self._session.availability.on_lost(error, broke=False, is_expected=answers.front is not None)

    def _on_drafter(self, device: Device) -> None:
        """The server's drafter is here."""
        self._own.next = replace(device, target=self._own.device.target)
        if (choice := device.choice) is not None:
            changed = DrafterChanged(choice.name, choice.reason, choice.standalone)
            self._session.answers.events.append(changed)

    def _say(self, message: str) -> None:
        self._session.answers.events.append(ServerChanged("drafter", message))

    # ------------------------------------------------------------ the tasks

    async def _ask(self) -> None:
        """Asks the server what it is, until it is one that has the conversation's model."""
        backoff, dialer, own = Backoff(), self._dialer, self._own
        while True:
            try:
                served = await dialer.describe()
                if self._adopt is not None and own.device.target.stands_in:
                    self._post(partial(self._on_target, await self._adopt(served, own.device)))
                    return
                check_model(dialer.server.label, served.identity, own.device.identity)
            except MoaError as error:
                self._post(partial(self._on_absent, error))
                if isinstance(error, MismatchError):
                    backoff.not_before(STRANGER_SECONDS)
            else:
                self._post(partial(self._on_recognised, served))
                return
            await asyncio.sleep(backoff.next_seconds())

    async def _fit(self, refit: Refit) -> None:
        """Gets a drafter of the server's, unless those that it has were tried."""
        try:
            served = await self._dialer.describe()
            if (offered := _offered(served)) == self._tried:
                return
            device = await refit(served, self._own.device, self._session.availability.monitor.rtt_ms or 0.0)
        except (UnavailableError, OverloadedError, MismatchError):
            return  # the next stream tries again
        except MoaError as error:
            words = f"The server's drafter cannot be used here, so that this device does not draft: {error}"
            found: Callable[[], None] | None = partial(self._say, words)
        else:
            found = partial(self._on_drafter, device) if device is not None else None
        self._tried = offered
        if found is not None:
            self._post(found, while_asking=False)


def check_model(address: str, served: pb.Identity, mine: pb.Identity) -> None:
    """Raises MismatchError, which says what a user can do, if the server cannot continue a conversation with `mine`."""
    needed = pb.Identity(target_fingerprint=mine.target_fingerprint, tokenizer_hash=mine.tokenizer_hash)
    try:
        check_identity(served, needed)
    except MismatchError:
        its, before = served.target_id, mine.target_id
        if its == before:
            its, before = f"another {its}", "the former one"
        raise MismatchError(
            f"{address} serves {its} now: this conversation with {mine.target_id} is kept, and continues when {before} "
            "is served there again; to talk to the other model, start another chat.",
            hint="",
        ) from None


def _offered(served: pb.DescribeResponse) -> frozenset[bytes]:
    return frozenset(drafter.fingerprint for drafter in served.drafters)


def _drafter_words(served: pb.DescribeResponse) -> str:
    if not served.drafters:
        return "The server has no drafter for this device any more: it answers without this device's drafts."
    return "The server has another drafter now: it answers without this device's drafts until this device has that one."
