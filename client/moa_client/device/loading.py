"""Loads what the client needs: of the target its tokenizer, embeddings, head and last layers; a drafter; a companion.

Everything is checked against what the server describes before a conversation is opened. A drafter runs over parts of
the target, which are packed in a file that all processes of the device map; it computes the same bits with it and
without.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_kernels import KernelError, variant_name
from moa_shared.constraints.compiler import constraint_compiler
from moa_shared.drafter.checkpoint import Checkpoint, confidence_for, load_checkpoint, ngrams_for
from moa_shared.drafter.companion import Companion, find_companion, load_companion
from moa_shared.drafter.kinds.weights import DRAFT_IDS, INT8, TargetParts
from moa_shared.drafting.growing import CHAIN, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.errors import ConfigError, DiskFullError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.files import end_of_text, read_sampling_defaults
from moa_shared.models.storage.cache import cache_root, remembered_hash
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD
from moa_shared.models.tiles import map_tiles
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.models.weights import layer_names
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import check_identity
from moa_shared.protocol.messages import AnswerSettings, FinishRule, Plane
from moa_shared.sampling.settings import Constraint, SamplingDefaults

from moa_client.device import sources as here
from moa_client.device.drafter_catalog import COMPANION, DrafterChoice, ServerPace, choose_drafter, drafters_here
from moa_client.drafting import drafters
from moa_client.link.fleet import Fleet
from moa_client.settings import ClientSettings

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What this device holds of a server's model."""

    files: ModelFiles
    tokenizer: Tokenizer
    identity: pb.Identity  # without a drafter
    end_of_text: frozenset[int] = frozenset()  # token ids; with `context_tokens`, what ends a standalone answer
    context_tokens: int = 1 << 31
    execution: pb.Execution | None = None  # the arithmetic that decides the text; None: no server has reported it
    step_ms: float = 0.0  # time of a plain step at the server; 0: not known
    sampling: SamplingDefaults = field(default_factory=dict)  # how the model's answers are sampled by default
    stands_in: bool = False  # it is the companion, which speaks for itself until a server names its model

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
    def end_rule(self) -> FinishRule:
        return FinishRule(AnswerSettings(), 0, self.context_tokens, self.end_of_text, self.decode)

    def on_execution(self, opened: pb.Opened) -> Target:
        """The same for a server that computes differently from the one before."""
        new, identity = opened.new_execution, pb.Identity()
        identity.CopyFrom(self.identity)
        identity.execution = new.fingerprint
        context = opened.limits.context_tokens or self.context_tokens
        ends = frozenset(new.end_of_text)
        return replace(self, identity=identity, execution=new.execution, end_of_text=ends, context_tokens=context)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of some tokens, for the screen and for stop strings; as the server reads it."""
        return self.tokenizer.shown(tokens)

    def spelled(self, tokens: Sequence[int]) -> str:
        """Text of some tokens with the special ones, but for those that end an answer."""
        return self.tokenizer.decode([token for token in tokens if token not in self.end_of_text])


@dataclass(frozen=True, slots=True)
class Drafting:
    new_drafter: Callable[[], drafters.ClientDrafter]  # makes one for a conversation, over the same weights
    fingerprint: bytes = b""  # of the drafter whose memory the server sends; empty: none
    planes: Mapping[Plane, int] = field(default_factory=dict)  # numbers of a row of each plane, the most needed first
    narrow: int = 0  # numbers of memory rows that no window sees any more; 0: they are all whole
    choice: DrafterChoice | None = None  # which drafter it is, and why; None: look-up
    is_refused: bool = False  # the server has no memory for the drafter, or was not asked for any


@dataclass(frozen=True, slots=True)
class Device:
    """What this device holds: of a server's model, a drafter (None: plain steps), and a model that writes by itself."""

    target: Target
    drafting: Drafting | None = None
    companion: Companion | None = None

    @property
    def identity(self) -> pb.Identity:
        """What the server must have for this device."""
        identity = pb.Identity(drafter_fingerprint=self.drafting.fingerprint if self.drafting is not None else b"")
        identity.MergeFrom(self.target.identity)
        return identity

    @property
    def choice(self) -> DrafterChoice | None:
        return self.drafting.choice if self.drafting is not None else None

    def refused(self) -> Device:
        """The same device for a server that has no memory for the drafter."""
        drafting = self.drafting
        return replace(self, drafting=drafting and Drafting(drafting.new_drafter, is_refused=True))


def load_device(
    settings: ClientSettings,
    served: pb.DescribeResponse,
    progress: Progress,
    sources: here.Sources | None = None,
    rtt_ms: float | None = 0.0,
    companion: Companion | None = None,
) -> Device:
    """Loads everything.

    `sources`: the files; None: --model and the installed drafters, without asking the server for any. `rtt_ms`: None:
    the server is unavailable. `companion`: that is loaded already, for another target; None: as --companion means.
    """
    sources = sources or here.resolve_sources(settings, served, progress)
    files, identity = sources.files, here.identity_of(sources.files)
    identity.execution = served.identity.execution
    check_identity(served.identity, identity, served.drafters)
    tokenizer = load_tokenizer(files)
    target = Target(
        files,
        tokenizer,
        identity,
        end_of_text(files, tokenizer.eos_token_id),
        served.limits.context_tokens or int(files.config.get("max_position_embeddings") or 1 << 31),
        served.execution if served.HasField("execution") else None,
        served.step_ms,
        read_sampling_defaults(files),
        sources.stands_in,
    )
    if companion is not None:
        companion = companion.beside(files, settings.cache_dir)
    elif settings.companion:
        companion = _load_companion(settings, sources, tokenizer, progress)
    device = fit(Device(target, companion=companion), settings, sources, progress, rtt_ms)
    if rtt_ms is not None:  # else whatever server comes says whether it has memory for the drafter
        check_identity(served.identity, device.identity, served.drafters)
    return device


def _load_companion(
    settings: ClientSettings, sources: here.Sources, tokenizer: Tokenizer, progress: Progress
) -> Companion | None:
    """The companion that --companion means; None: the server offers none."""
    if (files := sources.companion) is None:
        if settings.companion == here.AUTO:
            return None
        files = find_companion(settings.companion, settings.cache_dir, progress)
    companion = load_companion(files, sources.files, settings.cache_dir, progress, weights=settings.dtype)
    if companion.tokenizer.chat_template != tokenizer.chat_template:
        words = "the companion %s has another chat template than %s: it reads the conversation's"
        log.warning(words, companion.name, sources.files.target_id)
    return companion


async def adopt(settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, device: Device) -> Device:
    """The device, of nothing but a companion, for the server's target; the server's drafters come later (`refit`)."""
    without, progress = replace(settings, drafter=here.NONE), Progress()
    sources = await here.find_sources(without, fleet, served, progress)
    loaded = await asyncio.to_thread(load_device, without, served, progress, sources, None, device.companion)
    return replace(loaded, drafting=loaded.drafting and replace(loaded.drafting, is_refused=True))


async def refit(
    settings: ClientSettings, fleet: Fleet, served: pb.DescribeResponse, device: Device, rtt_ms: float
) -> Device | None:
    """The device with a drafter that the server has memory for, fetched if need be; None: --drafter means none."""
    check_identity(served.identity, device.target.identity)
    meant, progress = here.meant_drafters(settings, served), Progress()  # an answer may be on the screen
    if not meant and not here.means_served(settings):
        named = here.named_drafter(settings, device.target.files, progress)
        digest = bytes.fromhex(remembered_hash(named, cache_root(settings.cache_dir)))
        meant = [each for each in served.drafters if each.fingerprint == digest]
    if not meant:
        return None
    sources = await here.find_sources(settings, fleet, served, progress)
    bare = Device(replace(device.target, files=sources.files), companion=device.companion)
    fitted = await asyncio.to_thread(fit, bare, settings, sources, progress, rtt_ms)
    trim_heap()
    return fitted if fitted.drafting is not None and fitted.drafting.fingerprint else None


def trim_heap() -> None:
    """Returns freed memory to the system; does nothing where the C library, not being glibc, cannot."""
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def fit(
    device: Device, settings: ClientSettings, sources: here.Sources, progress: Progress, rtt_ms: float | None
) -> Device:
    """The device, which has none, with the drafter that --drafter means, next to its companion."""
    target, served, companion = device.target, sources.served, device.companion
    pace = ServerPace(served.step_ms, served.row_ms, rtt_ms) if rtt_ms is not None else None
    drafting, choice = None, choose_drafter(settings, sources, companion, pace)
    if choice is not None and choice.name != COMPANION:
        path = sources.drafters[drafters_here(settings, sources)[choice.name].fingerprint]
        drafting = _of_checkpoint(path, choice, target, settings)
    elif settings.drafter == "lookup":
        drafting = Drafting(lambda: drafters.LookupDrafter(settings.length))
    elif choice is None and here.means_served(settings):
        where = "here" if served.identity.drafter_fingerprint else "at the server"
        progress.note(f"There is no drafter for {target.files.target_id} {where}: the server answers by plain steps.")
    elif choice is None and settings.drafter != here.NONE:
        path = here.named_drafter(settings, target.files, progress)
        drafting = _of_checkpoint(path, DrafterChoice(settings.drafter, "as wished"), target, settings)
    if companion is not None:
        drafting = _with_companion(drafting or choice, companion, target, settings)
    return replace(device, drafting=drafting)


def _with_companion(
    online: Drafting | DrafterChoice | None, companion: Companion, target: Target, settings: ClientSettings
) -> Drafting:
    """What drafts for a server, or that it is the companion, with the companion writing where there is none."""
    ngrams, forms = ngrams_for(target.files.fingerprint), _forms(target.files)

    def writer() -> drafters.CompanionDrafter:
        return drafters.CompanionDrafter(companion, shape=_shape(settings), guesser=TextGuesser(ngrams), forms=forms)

    if not isinstance(online, Drafting):
        return Drafting(writer, choice=online and replace(online, standalone=companion.name))
    choice, drafter = online.choice and replace(online.choice, standalone=companion.name), online.new_drafter
    return replace(online, new_drafter=lambda: drafters.CompanionPair(drafter(), writer()), choice=choice)


def _of_checkpoint(path: Path, choice: DrafterChoice, target: Target, settings: ClientSettings) -> Drafting:
    files, checkpoint = target.files, load_checkpoint(path)
    config = checkpoint.config
    if config.target_fingerprint not in ("", files.fingerprint):
        hint = "Give a drafter that was trained for this target, or --drafter none."
        trained_for = config.target_fingerprint[:12]
        raise MismatchError("target that the drafter was trained for", files.fingerprint[:12], trained_for, hint=hint)
    reader = WeightReader(files)
    parts = target_parts(reader, files, checkpoint, settings, target.context_tokens)
    states = checkpoint.states(reader, settings.dtype, parts=parts)
    reader.drop_pages()
    confidence = confidence_for(checkpoint.fingerprint, path)
    ngrams, forms = ngrams_for(files.fingerprint, path), _forms(files)

    def new_drafter() -> drafters.ClientDrafter:
        return drafters.MoaDrafter(
            states,
            reads_memory=config.memory_width > 0,
            shape=_shape(settings),
            guesser=TextGuesser(ngrams),
            confidence=confidence,
            forms=forms,
            needs_rows=config.traits.reads_target_cache,
        )

    planes = {Plane.REUSED_STATE: config.hidden_size} if config.reused_layers else {}
    planes |= {Plane.MEMORY: config.memory_width} if config.memory_width else {}
    planes |= {Plane.REUSED_STATE: config.state_width} if config.traits.reads_target_cache else {}
    narrow, *_ = (*config.memory_widths, 0)
    return Drafting(new_drafter, bytes.fromhex(checkpoint.fingerprint), planes, narrow, choice)


def _shape(settings: ClientSettings) -> GrowthShape:
    return CHAIN if settings.mode == "chain" else GrowthShape(breadth=settings.breadth)


def _forms(files: ModelFiles) -> drafters.BeginForm:
    """Begins answers under constraints, on a thread of its own; None where the library is missing."""
    thread = ThreadPoolExecutor(1, "forms")  # begins with the first form

    @cache
    def compiler() -> ConstraintCompiler | None:
        tokenizer = load_tokenizer(files)
        ends = end_of_text(files, tokenizer.eos_token_id)
        return constraint_compiler(tokenizer, int(files.config["vocab_size"]), ends, tries=False)

    def begin(constraint: Constraint) -> ConstrainedText | None:
        found = compiler()
        return found.begin(constraint) if found is not None else None

    return lambda constraint: thread.submit(begin, constraint)


def target_parts(
    reader: WeightReader, files: ModelFiles, checkpoint: Checkpoint, settings: ClientSettings, context: int
) -> TargetParts:
    """The parts of the target that a drafter runs: packed in the cache, for all processes, where that can be."""
    config, names = checkpoint.config, set[str]()
    if config.traits.maps_target:
        names = {name for name in layer_names(files, config.reused_layers) if name.startswith("model.layers.")}
        if DRAFT_IDS not in checkpoint.tensors:
            names.add(HEAD if HEAD in reader.names() else EMBEDDINGS)
    matrices = sorted(name for name in names if len(reader.shape(name)) == 2)
    if not matrices or settings.dtype != INT8 or variant_name() == "numpy":
        return TargetParts(reader, context=context)
    try:
        tiles = map_tiles(files, cache_root(settings.cache_dir), Progress(), only=matrices)
    except (KernelError, ConfigError, DiskFullError, OSError):  # sizes that numpy computes, or a disk without room
        return TargetParts(reader, context=context)
    return TargetParts(reader, reader.with_tiles(tiles), context)
