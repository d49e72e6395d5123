"""Loads what the client needs: tokenizer, drafter, and of the target only embeddings, head and last layers.

Everything is checked against what the server describes before a conversation is opened.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafter.companion import Companion, confidence_beside, find_companion, load_companion
from moa_shared.drafting.confidence import LearnedConfidence
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.errors import ConfigError, InternalError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import end_of_text, read_sampling_defaults
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import check_identity
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import NOTHING_SAID, SamplingDefaults

from moa_client.conversation.events import LOOK_UP
from moa_client.conversation.open_answers import EndRule
from moa_client.device.drafter_catalog import COMPANION, NOBODY, DrafterCatalog, DrafterChoice, ServerPace
from moa_client.device.new_drafters import (
    checkpoint_drafters,
    companion_drafters,
    drafter_states,
    named_checkpoint,
    target_parts,
)
from moa_client.device.sources import AUTO, NONE, Sources, means_served, named_drafter, resolve_sources
from moa_client.drafting.companion import CompanionPair, PairedDrafter
from moa_client.drafting.drafters import ClientDrafter, LookupDrafter
from moa_client.settings import ClientSettings

TEMPLATE_DIFFERS = "the companion {companion} has another chat template than {target}: it reads the conversation's"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drafting:
    """How this device drafts for a target.

    Args:
        drafter: None: the server answers by plain steps.
        memory_width, state_width: numbers of a row of each plane; state_width 0 without reused layers.
        choice: which drafter it is, and why; None where none reads the server's memory, unless that was dropped.
        trial: of the drafter against look-up, in all conversations; None: it is not tried, or its end was told.
        new_drafter: makes another one over the same weights, for another conversation.
        is_refused: the server has no memory for the drafter, which only writes without one.
    """

    drafter: ClientDrafter | None = None
    memory_width: int = 0
    state_width: int = 0
    choice: DrafterChoice | None = None
    catalog: DrafterCatalog | None = None
    trial: DrafterTrial | None = None
    new_drafter: Callable[[], ClientDrafter] | None = None
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """What this device holds for a server's target.

    Args:
        end_of_text: token ids that end an answer; with `context_tokens`, what ends a standalone one.
        execution: the arithmetic that decides the server's text; None: no server has reported it.
        step_ms: time of a plain step at the server; 0: not known.
        sampling: how the model's answers are sampled by default.
        companion: writes without a server; None: there is none.
        trust: in its text, which all conversations go on to learn, whoever drafts; None: the same.
        stands_in: the companion is all that is here: `files` and identity are its own until a server names its target.
    """

    files: ModelFiles
    tokenizer: Tokenizer
    identity: pb.Identity
    drafting: Drafting = Drafting()
    end_of_text: frozenset[int] = frozenset()
    context_tokens: int = 1 << 31
    execution: pb.Execution | None = None
    step_ms: float = 0.0
    sampling: SamplingDefaults = NOTHING_SAID
    companion: Companion | None = None
    trust: LearnedConfidence | None = None
    stands_in: bool = False

    @property
    def planes(self) -> dict[Plane, int]:
        """Numbers of a row of each plane that the drafter reads.

        States are worth more than memory rows and cost the server less, so they come first (moa_server/memory/feed.py).
        """
        drafting = self.drafting
        states = {Plane.REUSED_STATE: drafting.state_width} if drafting.state_width else {}
        return {**states, Plane.MEMORY: drafting.memory_width}

    @property
    def fingerprint(self) -> str:
        """Of the target's weights and of the server's execution, as programs see it."""
        identity = self.identity
        digest = hashlib.sha256(identity.target_fingerprint + identity.execution + self.level.encode())
        return f"fp_{digest.hexdigest()[:12]}"

    @property
    def level(self) -> str:
        """The server's level of execution; empty: it has not reported it."""
        return self.execution.level if self.execution is not None else ""

    @property
    def is_exact(self) -> bool:
        """Whether the text does not depend on what is computed together, as far as the server has reported."""
        return self.execution is None or self.execution.exact

    @property
    def end_rule(self) -> EndRule:
        return EndRule(self.end_of_text, self.context_tokens, self.decode)

    def on_execution(self, opened: pb.Opened) -> Device:
        """The same device for a server that computes differently from the one before."""
        new = opened.new_execution
        return replace(
            self,
            identity=_changed(self.identity, execution=new.fingerprint),
            execution=new.execution,
            end_of_text=frozenset(new.end_of_text),
            context_tokens=opened.limits.context_tokens or self.context_tokens,
        )

    def refused(self) -> Device:
        return self._without_memory(choice=None, is_refused=True)

    def with_dropped_drafter(self) -> Device:
        """The same device for a drafter that is asked no more: a server need not send memory for it."""
        standalone = self.companion.name if self.companion is not None else ""
        choice = DrafterChoice(LOOK_UP, "the drafter guessed worse than what the text repeats", standalone)
        return self._without_memory(choice=choice, trial=None).for_another_conversation()

    def _without_memory(self, **fields: Any) -> Device:
        bare = replace(self, identity=_changed(self.identity, drafter_fingerprint=b""))
        return bare.with_drafting(memory_width=0, state_width=0, catalog=None, **fields)

    def with_drafting(self, **fields: Any) -> Device:
        return replace(self, drafting=replace(self.drafting, **fields))

    def with_drafter_of(self, other: Device) -> Device:
        """The same device with another one's drafter."""
        identity = _changed(self.identity, drafter_fingerprint=other.identity.drafter_fingerprint)
        drafting = replace(other.drafting, is_refused=False)
        return replace(
            self,
            files=other.files,
            identity=identity,
            drafting=drafting,
            companion=other.companion,
            trust=other.trust,
        )

    def for_another_conversation(self) -> Device:
        """The same device with a drafter that knows no conversation yet."""
        new_drafter = self.drafting.new_drafter
        return self if new_drafter is None else self.with_drafting(drafter=new_drafter())

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of some tokens, for the screen and for stop strings; as the server reads it."""
        return self.tokenizer.shown(tokens)

    def spelled(self, tokens: Sequence[int]) -> str:
        """Text of some tokens with the special ones, but for those that end an answer."""
        return self.tokenizer.decode([token for token in tokens if token not in self.end_of_text])


def load_device(
    settings: ClientSettings,
    served: pb.DescribeResponse,
    progress: Progress,
    sources: Sources | None = None,
    rtt_ms: float | None = 0.0,
    companion: Companion | None = None,
) -> Device:
    """Loads everything.

    Args:
        sources: the files; None: --model and the installed drafters, without asking the server for any.
        rtt_ms: to the server, as far as known; None: the server is unavailable.
    """
    _check_draft_size(settings, served.limits.draft_nodes)
    sources = sources or resolve_sources(settings, served, progress)
    files = sources.files
    identity = pb.Identity(
        target_id=files.target_id,
        target_fingerprint=bytes.fromhex(files.fingerprint),
        tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
        execution=served.identity.execution,
    )
    check_identity(served.identity, identity, served.drafters)
    tokenizer = load_tokenizer(files)
    device = Device(
        files,
        tokenizer,
        identity,
        Drafting(),
        end_of_text(files, tokenizer.eos_token_id),
        served.limits.context_tokens or int(files.config.get("max_position_embeddings") or 1 << 31),
        execution=served.execution if served.HasField("execution") else None,
        step_ms=served.step_ms,
        sampling=read_sampling_defaults(files),
        companion=companion,
        stands_in=sources.stands_in,
    )
    device = equip(device, settings, sources, progress, rtt_ms)
    check_identity(served.identity, device.identity, served.drafters)
    return device


def equip(
    device: Device, settings: ClientSettings, sources: Sources, progress: Progress, rtt_ms: float | None
) -> Device:
    """The device with the drafter that --drafter means, and the companion.

    `device`: without a drafter, for the target in `sources`; a companion that it has is kept.
    """
    files, served = sources.files, sources.served
    companion = _companion_for(device, settings, sources, progress)
    device = replace(device, companion=companion)
    if companion is not None and device.trust is None:
        device = replace(device, trust=confidence_beside(companion.files, files, cache_root(settings.cache_dir)))
    if settings.drafter == "lookup":
        return _with(device, lambda: LookupDrafter(settings.length), settings)
    catalog = DrafterCatalog(settings, sources, device.companion)
    if settings.drafter == NONE and catalog.is_empty:
        return device
    if not catalog.is_empty:
        server = ServerPace(served.step_ms, served.row_ms, rtt_ms) if rtt_ms is not None else None
        choice = catalog.choose(server)
        if choice.name == NOBODY:
            progress.note(f"Nobody drafts here: {choice.reason}.")
        return change_drafter(device.with_drafting(catalog=catalog), choice, settings)
    if means_served(settings):
        where = "here" if served.identity.drafter_fingerprint else "at the server"
        progress.note(f"There is no drafter for {files.target_id} {where}: the server answers by plain steps.")
        return device
    choice = DrafterChoice(settings.drafter, "as wished")
    path = named_drafter(settings, files, progress)
    return _with_checkpoint(device, named_checkpoint(path, files), choice, settings, path)


def change_drafter(device: Device, choice: DrafterChoice, settings: ClientSettings) -> Device:
    catalog, files, companion = device.drafting.catalog, device.files, device.companion
    if catalog is None:
        raise InternalError("A drafter was to be changed on a device that has no others.")
    if companion is not None and choice.name in (COMPANION, NOBODY):
        identity = _changed(device.identity, drafter_fingerprint=b"")
        writers = companion_drafters(companion, files, settings, device.trust, drafts=choice.name == COMPANION)
        choice = replace(choice, standalone=companion.name)
        device = replace(device, identity=identity).with_drafting(drafter=writers(), new_drafter=writers)
        return device.with_drafting(memory_width=0, state_width=0, choice=choice, trial=None)
    online = catalog.checkpoint(choice.name)
    if companion is not None:
        return _with_checkpoint(device, online, choice, settings)
    standalone = catalog.standalone_for(choice.name, online)
    if standalone is None:
        return _with_checkpoint(device, online, choice, settings)
    name, deeper = standalone
    pairs = _pairs(online, deeper, files, settings, device.context_tokens)
    return _reading_memory_of(device, deeper, pairs, replace(choice, standalone=name), settings)


def _pairs(
    online: Checkpoint, standalone: Checkpoint, files: ModelFiles, settings: ClientSettings, context: int
) -> Callable[[], ClientDrafter]:
    """Makes pairs of drafters over the same parts of the target, with the states that the second one reads."""
    reader = WeightReader(files)
    parts = target_parts(reader, files, (online, standalone), settings, context)
    first = standalone.config.target_layers - standalone.config.reused_layers
    first_of, second_of = (
        checkpoint_drafters(
            each,
            each.states(reader, settings.dtype, parts=parts, states_from=first),
            files,
            settings,
            reads_memory=True,
        )
        for each in (online, standalone)
    )
    reader.drop_pages()
    return lambda: PairedDrafter(first_of(), second_of())


def _with_checkpoint(
    device: Device, checkpoint: Checkpoint, choice: DrafterChoice, settings: ClientSettings, path: Path | None = None
) -> Device:
    files, reads_memory = device.files, checkpoint.config.memory_width > 0
    states, trial = drafter_states(checkpoint, files, settings, device.context_tokens), DrafterTrial()
    new_drafter = checkpoint_drafters(
        checkpoint, states, files, settings, reads_memory=reads_memory, path=path, trial=trial
    )
    return _reading_memory_of(device, checkpoint, new_drafter, choice, settings).with_drafting(trial=trial)


def _with(device: Device, new_drafter: Callable[[], ClientDrafter], settings: ClientSettings) -> Device:
    if device.companion is not None:
        standalone, online = companion_drafters(device.companion, device.files, settings, device.trust), new_drafter
        new_drafter = lambda: CompanionPair(online(), standalone())  # noqa: E731
    return device.with_drafting(drafter=new_drafter(), new_drafter=new_drafter)


def _reading_memory_of(
    device: Device,
    checkpoint: Checkpoint,
    new_drafter: Callable[[], ClientDrafter],
    choice: DrafterChoice,
    settings: ClientSettings,
) -> Device:
    config = checkpoint.config
    if device.companion is not None:
        choice = replace(choice, standalone=device.companion.name)
    identity = _changed(device.identity, drafter_fingerprint=bytes.fromhex(checkpoint.fingerprint))
    return _with(replace(device, identity=identity), new_drafter, settings).with_drafting(
        memory_width=config.memory_width,
        state_width=config.hidden_size if config.reused_layers else 0,
        choice=choice,
    )


def _changed(identity: pb.Identity, **fields: bytes) -> pb.Identity:
    changed = pb.Identity()
    changed.CopyFrom(identity)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _check_draft_size(settings: ClientSettings, most: int) -> None:
    value = settings.length if settings.mode == "chain" or settings.drafter == "lookup" else settings.nodes
    if (settings.drafter != NONE or settings.companion) and 0 < most < value:
        raise ConfigError(
            f"The server verifies at most {most} draft tokens at once, and this device drafts {value}.",
            hint="Its operator raises that limit.",
        )


def _companion_for(device: Device, settings: ClientSettings, sources: Sources, progress: Progress) -> Companion | None:
    """The companion that --companion means, for the device's target; None: none is wished for, or offered."""
    if not settings.companion:
        return None
    if device.companion is not None:
        return device.companion.beside(device.files, settings.cache_dir)
    files = sources.companion
    if files is None and settings.companion != AUTO:
        files = find_companion(settings.companion, settings.cache_dir, progress)
    if files is None:
        return None
    companion = load_companion(files, device.files, settings.cache_dir, progress, weights=settings.dtype)
    if companion.tokenizer.chat_template != device.tokenizer.chat_template:
        log.warning(TEMPLATE_DIFFERS.format(companion=companion.name, target=device.files.target_id))
    return companion
