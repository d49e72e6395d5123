"""Loads what the client needs: tokenizer, drafter, and of the target only embeddings, head and last layers.

Everything is checked against what the server describes before a conversation is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_shared.constraints.library import constraint_compiler
from moa_shared.drafter import Checkpoint, DrafterConfig, fresh_tensors, load_checkpoint
from moa_shared.drafter.checkpoint.checkpoint import NewState
from moa_shared.drafter.checkpoint.confidence_file import confidence_for
from moa_shared.drafter.checkpoint.ngram_file import ngrams_for
from moa_shared.drafting import CHAIN, GrowthShape, TextGuesser, draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.drafting.trial import DrafterTrial
from moa_shared.errors import ConfigError, InternalError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.network.layer_sizes import kv_width_if_differing
from moa_shared.models.sources.generation import read_sampling_defaults
from moa_shared.models.tokenizer.end_of_text import end_of_text
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import check_identity
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.defaults import NOTHING_SAID, SamplingDefaults

from moa_client.conversation.answer_queue import EndRule
from moa_client.conversation.events import LOOK_UP
from moa_client.device.drafter_catalog import DrafterCatalog
from moa_client.device.drafter_choice import DrafterChoice, ServerPace
from moa_client.device.mapped_parts import target_parts
from moa_client.device.sources import Sources, means_served, named_drafter, resolve_sources
from moa_client.drafting.answer_forms import ConversationForms, DeviceForms
from moa_client.drafting.drafters import ClientDrafter, LookupDrafter, MoaDrafter, Recipe
from moa_client.drafting.paired import PairedDrafter
from moa_client.settings import ClientSettings

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler


@dataclass(frozen=True, slots=True)
class Device:
    """What this device holds for a server's target.

    Args:
        drafter: None: the server answers by plain steps.
        new_drafter: makes another one over the same weights, for another conversation.
        choice: which drafter it is, and why; None where none reads the server's memory, unless that was dropped.
        catalog: those that may replace it.
        execution: the arithmetic that decides the server's text; None: no server has reported it.
        step_ms: time of a plain step at the server; 0: not known.
        memory_width, state_width: numbers of a row of each plane; state_width 0 without reused layers.
        trial: of the drafter against look-up, in all conversations; None: it is not tried, or its end was told.
        is_refused: the server has no memory for the drafter, which only writes without one.
        end_of_text: token ids that end an answer; with `context_tokens`, what ends a standalone one.
        sampling: how the model's answers are sampled by default.
    """

    files: ModelFiles
    tokenizer: Tokenizer
    identity: pb.Identity
    drafter: ClientDrafter | None
    memory_width: int
    state_width: int
    end_of_text: frozenset[int] = frozenset()
    context_tokens: int = 1 << 31
    choice: DrafterChoice | None = None
    catalog: DrafterCatalog | None = None
    execution: pb.Execution | None = None
    step_ms: float = 0.0
    trial: DrafterTrial | None = None
    is_refused: bool = False
    new_drafter: Callable[[], ClientDrafter] | None = None
    sampling: SamplingDefaults = NOTHING_SAID

    @property
    def planes(self) -> dict[Plane, int]:
        """Numbers of a row of each plane that the drafter reads.

        States are worth more than memory rows and cost the server less, so they come first (moa_server/memory/feed.py).
        """
        states = {Plane.REUSED_STATE: self.state_width} if self.state_width else {}
        return {**states, Plane.MEMORY: self.memory_width}

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
        """What ends a standalone answer."""
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
        """The same device for a server that has no memory for its drafter."""
        identity = _changed(self.identity, drafter_fingerprint=b"")
        return replace(
            self, identity=identity, memory_width=0, state_width=0, choice=None, catalog=None, is_refused=True
        )

    def with_dropped_drafter(self) -> Device:
        """The same device for a drafter that is asked no more: a server need not send memory for it."""
        identity = _changed(self.identity, drafter_fingerprint=b"")
        choice = DrafterChoice(LOOK_UP, "the drafter guessed worse than what the text repeats")
        bare = replace(self, identity=identity, memory_width=0, state_width=0, choice=choice, catalog=None, trial=None)
        return bare.for_another_conversation()

    def with_drafter_of(self, other: Device) -> Device:
        """The same device with another one's drafter."""
        return replace(
            self,
            files=other.files,
            identity=_changed(self.identity, drafter_fingerprint=other.identity.drafter_fingerprint),
            drafter=other.drafter,
            new_drafter=other.new_drafter,
            memory_width=other.memory_width,
            state_width=other.state_width,
            choice=other.choice,
            catalog=other.catalog,
            trial=other.trial,
            is_refused=False,
        )

    def for_another_conversation(self) -> Device:
        """The same device with a drafter that knows no conversation yet."""
        return replace(self, drafter=self.new_drafter()) if self.new_drafter is not None else self

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
) -> Device:
    """Loads everything.

    Args:
        sources: the files; None: --model and the package's drafter, without asking the server for any.
        rtt_ms: to the server, as far as known; None: the server is unavailable.

    Raises:
        ConfigError: drafts are larger than the server accepts.
        MismatchError: the server serves another target, tokenizer or drafter.
        MoaError: a model or checkpoint cannot be loaded.
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
        None,
        0,
        0,
        end_of_text(files, tokenizer.eos_token_id),
        served.limits.context_tokens or int(files.config.get("max_position_embeddings") or 1 << 31),
        execution=served.execution if served.HasField("execution") else None,
        step_ms=served.step_ms,
        sampling=read_sampling_defaults(files),
    )
    device = equip(device, settings, sources, progress, rtt_ms)
    check_identity(served.identity, device.identity, served.drafters)
    return device


def equip(
    device: Device, settings: ClientSettings, sources: Sources, progress: Progress, rtt_ms: float | None
) -> Device:
    """The device with the drafter that --drafter means.

    Args:
        device: without a drafter, for the target in `sources`.

    Raises:
        MoaError: a checkpoint cannot be loaded.
    """
    files, served = sources.files, sources.served
    if settings.drafter == "lookup":
        return _with(device, lambda: LookupDrafter(settings.length))
    if settings.drafter == "random":
        random = _random_checkpoint(files)
        states, trial = drafter_states(random, files, settings, device.context_tokens), DrafterTrial()
        new_drafter = _moa_drafters(random, states, files, settings, reads_memory=False, trial=trial)
        return replace(_with(device, new_drafter), trial=trial)
    if settings.drafter == "none":
        return device
    catalog = DrafterCatalog(settings, sources)
    if not catalog.is_empty:
        server = ServerPace(served.step_ms, served.row_ms, rtt_ms) if rtt_ms is not None else None
        return change_drafter(replace(device, catalog=catalog), catalog.choose(server), settings)
    if means_served(settings):
        where = "here" if served.identity.drafter_fingerprint else "at the server"
        progress.note(f"There is no drafter for {files.target_id} {where}: the server answers by plain steps.")
        return device
    choice = DrafterChoice(settings.drafter, "as wished")
    path = named_drafter(settings, files, progress)
    return _with_checkpoint(device, _named_checkpoint(path, files), choice, settings, path)


def change_drafter(device: Device, choice: DrafterChoice, settings: ClientSettings) -> Device:
    """The device with another drafter from its catalog.

    Raises:
        MoaError: a checkpoint cannot be used.
    """
    if device.catalog is None:
        raise InternalError("A drafter was to be changed on a device that has no others.")
    catalog, files = device.catalog, device.files
    online = catalog.checkpoint(choice.name)
    standalone = catalog.standalone_for(choice.name, online)
    if standalone is None:
        return _with_checkpoint(device, online, choice, settings)
    name, alone = standalone
    pairs = _pairs(online, alone, files, settings, device.context_tokens)
    return _reading_memory_of(device, alone, pairs, replace(choice, alone=name))


def _pairs(
    online: Checkpoint, alone: Checkpoint, files: ModelFiles, settings: ClientSettings, context: int
) -> Callable[[], ClientDrafter]:
    """Makes pairs of drafters over the same parts of the target, with the states that the second one reads."""
    reader = WeightReader(files)
    parts = target_parts(reader, files, (online, alone), settings, context)
    first = alone.config.target_layers - alone.config.reused_layers
    first_of, second_of = (
        _moa_drafters(
            each,
            each.states(reader, settings.dtype, parts=parts, states_from=first),
            files,
            settings,
            reads_memory=True,
        )
        for each in (online, alone)
    )
    reader.drop_pages()
    return lambda: PairedDrafter(first_of(), second_of())


def _with_checkpoint(
    device: Device, checkpoint: Checkpoint, choice: DrafterChoice, settings: ClientSettings, path: Path | None = None
) -> Device:
    files, reads_memory = device.files, checkpoint.config.memory_width > 0
    states, trial = drafter_states(checkpoint, files, settings, device.context_tokens), DrafterTrial()
    new_drafter = _moa_drafters(checkpoint, states, files, settings, reads_memory=reads_memory, path=path, trial=trial)
    return replace(_reading_memory_of(device, checkpoint, new_drafter, choice), trial=trial)


def _with(device: Device, new_drafter: Callable[[], ClientDrafter]) -> Device:
    return replace(device, drafter=new_drafter(), new_drafter=new_drafter)


def _reading_memory_of(
    device: Device, checkpoint: Checkpoint, new_drafter: Callable[[], ClientDrafter], choice: DrafterChoice
) -> Device:
    """The device with drafters that read the rows which a server has for this checkpoint."""
    config = checkpoint.config
    return replace(
        _with(device, new_drafter),
        identity=_changed(device.identity, drafter_fingerprint=bytes.fromhex(checkpoint.fingerprint)),
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
    chain = settings.mode == "chain" or settings.drafter == "lookup"
    name, value = ("length", settings.length) if chain else ("nodes", settings.nodes)
    if settings.drafter != "none" and 0 < most < value:
        raise ConfigError(
            f"--{name} is {value}, the server verifies at most {most} draft tokens at once.",
            hint=f"Give --{name} {most} or less.",
        )


def _named_checkpoint(path: Path, files: ModelFiles) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    if checkpoint.config.target_fingerprint not in ("", files.fingerprint):
        raise MismatchError(
            "target that the drafter was trained for",
            files.fingerprint[:12],
            checkpoint.config.target_fingerprint[:12],
            hint="Give a drafter that was trained for this target, or --drafter none.",
        )
    return checkpoint


def _moa_drafters(
    checkpoint: Checkpoint,
    states: NewState,
    files: ModelFiles,
    settings: ClientSettings,
    *,
    reads_memory: bool,
    path: Path | None = None,
    trial: DrafterTrial | None = None,
) -> Callable[[], ClientDrafter]:
    """Makes drafters over one checkpoint's weights, which share a trial."""
    ngrams = ngrams_for(files.fingerprint, path) if settings.copies else None
    confidence = confidence_for(checkpoint.fingerprint, path) if checkpoint.fingerprint else None
    shape = CHAIN if settings.mode == "chain" else GrowthShape(breadth=settings.breadth)
    forms = DeviceForms(partial(_new_compiler, files))

    def new_drafter() -> ClientDrafter:
        guesser = TextGuesser(ngrams) if settings.copies else None
        recipe = _recipe(settings, guesser)
        return MoaDrafter(
            states,
            recipe,
            reads_memory=reads_memory,
            shape=shape,
            guesser=guesser,
            confidence=confidence,
            forms=ConversationForms(forms),
            trial=trial,
        )

    return new_drafter


def _new_compiler(files: ModelFiles) -> ConstraintCompiler | None:
    tokenizer = load_tokenizer(files)
    ends = end_of_text(files, tokenizer.eos_token_id)
    return constraint_compiler(tokenizer, int(files.config["vocab_size"]), ends, tries=False)


def drafter_states(checkpoint: Checkpoint, files: ModelFiles, settings: ClientSettings, context: int = 0) -> NewState:
    """The factory of a conversation's draft state, over the parts of the target in `files`.

    Args:
        context: the most tokens of a conversation at the server; 0: as many as the model was made for.

    Raises:
        ModelSourceError: a part is missing, or does not have the shape that the drafter needs.
    """
    reader = WeightReader(files)
    parts = target_parts(reader, files, (checkpoint,), settings, context)
    states = checkpoint.states(reader, settings.dtype, parts=parts)
    reader.drop_pages()
    return states


def _recipe(settings: ClientSettings, guesser: TextGuesser | None) -> Recipe:
    if settings.mode == "chain":
        return lambda state, sampling: draft_chain(state, settings.length, sampling, guesser)
    shape = TreeShape(settings.depth, settings.breadth, settings.nodes)
    return lambda state, sampling: draft_tree(state, shape, sampling, guesser)[0]


def _random_checkpoint(files: ModelFiles) -> Checkpoint:
    """An untrained drafter of the target's widths, for tests and for comparison: it is almost never right."""
    values = files.config
    heads, hidden = int(values["num_attention_heads"]), int(values["hidden_size"])
    kv_heads = int(values.get("num_key_value_heads") or heads)
    head_dim = int(values.get("head_dim") or hidden // heads)
    config = DrafterConfig(
        vocab_size=int(values["vocab_size"]),
        hidden_size=hidden,
        target_layers=int(values["num_hidden_layers"]),
        target_heads=heads,
        target_kv_heads=kv_heads,
        target_head_dim=head_dim,
        target_kv_width=kv_width_if_differing(values),
        sa_kv_heads=kv_heads,
        sa_mlp=hidden,
        ca_kv_heads=kv_heads,
        ca_mlp=hidden,
        lsa_heads=kv_heads,
        lsa_kv_heads=kv_heads,
        lsa_mlp=head_dim,
    )
    return Checkpoint(config, fresh_tensors(config, seed=0), "")
