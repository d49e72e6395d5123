"""Makes a host from settings: plans it, loads the target and its drafters, computes what both ends compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

import structlog
from moa.v1 import moa_pb2 as pb
from moa_shared.constraints.compiler import constraint_compiler
from moa_shared.drafter.checkpoint import (
    DEFAULT_DRAFTER,
    SHIPPED_DRAFTERS,
    TOKENS_A_FORWARD,
    Checkpoint,
    load_checkpoint,
    ngrams_for,
    require_shipped,
    shipped_drafter,
)
from moa_shared.drafter.companion import fitting_companions
from moa_shared.drafter.kinds.weights import TargetParts
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.drafting.guesses import NgramTable
from moa_shared.errors import CheckpointError, ConfigError, MoaError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.models.catalogue import find_listed
from moa_shared.models.files import RAW_TEXT_ONLY, end_of_text, read_sampling_defaults
from moa_shared.models.network.plan import kv_width, plan_of
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.access.keys import Gate
from moa_server.drafting.draft_decision import MemorySource, NewDrafter, OwnDrafter
from moa_server.drafting.forward_cost import TORCH, RowShares
from moa_server.engine.inference_thread import InferenceThread
from moa_server.engine.live_session import Observer
from moa_server.engine.registry import SessionSize
from moa_server.engine.stepper import Stepper
from moa_server.listing import choose_drafter
from moa_server.service.fetch import CompanionFiles, DrafterFile, DrafterFiles, offered_companion
from moa_server.service.host import Host
from moa_server.service.services import ModelPooling, Served, find_pooling
from moa_server.session.memory_feed import Rows
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_server.verifier.execution_level import Execution, check_kv, choose_level, load_execution
from moa_server.verifier.memory_check import LEAST_TOKENS, Needed, SizedTarget, needed_memory

log = structlog.get_logger()


# Of the server's own drafters, whose time is the user's: docs/adr/0024-drafts-on-the-server.md.
OWN_WEIGHTS = "int4"
AUTO = "auto"

LoadExecution = Callable[[ModelFiles, ServerSettings, Progress], Execution]


class NamedDrafter(NamedTuple):
    name: str  # by which clients know it
    path: Path
    checkpoint: Checkpoint


class ServerPlan:
    """What a server with these settings would be here, each part found when it is first asked for; loads no weights."""

    def __init__(self, settings: ServerSettings, progress: Progress) -> None:
        self.settings = settings
        self._progress = progress

    @cached_property
    def files(self) -> ModelFiles:
        files = resolve(self.settings.model, self.settings.cache_dir, self._progress)
        trained = int(files.config["max_position_embeddings"])
        if self.settings.context_length > trained:
            said = f"The context length is {self.settings.context_length}, {files.target_id} holds {trained} tokens."
            raise ConfigError(said, hint="Lower --context-length, or leave it out.")
        return files

    @cached_property
    def level(self) -> str:
        return choose_level(self.settings, self.files.config, self.files.target_id)[0]

    @cached_property
    def drafters(self) -> tuple[NamedDrafter, ...]:
        """Whose memory rows are served; the first is for clients that name none."""
        settings, fetches = self.settings, find_listed(self.settings.model) is not None
        paths = drafter_paths(settings.drafter, self.files, settings.cache_dir, self._progress, fetches)
        return tuple(NamedDrafter(name, path, check_drafter(path, self.files)) for name, path in paths)

    @cached_property
    def companion_name(self) -> str:
        """As the settings have it, else of the catalogue's for this model; "": none."""
        listed = find_listed(self.settings.model)
        named = self.settings.companion or (listed.companion if listed is not None else "")
        return "" if named == "none" else named

    @cached_property
    def companion(self) -> CompanionFiles | None:
        """What devices may fetch; one that nobody named and that cannot be had is only said."""
        if not (name := self.companion_name):
            return None
        try:
            return offered_companion(name, self.files, self.settings.cache_dir, self._progress)
        except MoaError as error:
            if self.settings.companion:
                raise
            self._progress.note(f"No companion is offered. {error}")
            return None

    @cached_property
    def needed(self) -> Needed:
        nbytes = sum(tensor.nbytes for each in self.drafters for tensor in each.checkpoint.tensors.values())
        return needed_memory(self.files, self.level, self.settings.weights, nbytes)

    @cached_property
    def target(self) -> SizedTarget:
        settings = self.settings
        check_kv(settings.kv, self.level)
        return SizedTarget(self.files.config, self.level, settings.context_length or None, kv=settings.kv)

    @cached_property
    def session_nbytes(self) -> Callable[[int], int]:
        """The most bytes that a conversation of so many tokens takes."""
        sources = self.sources(self.target, load_first=False)
        return SessionSize(Stepper(self.target, sources), self.settings.draft_nodes).largest

    def sources(self, target: Target, *, load_first: bool = True) -> list[MemorySource]:
        """Of the drafters' memory rows. `load_first`: as of `with_drafters`."""
        named, files = self.drafters, self.files
        made = [(memory_source(each.checkpoint, target), each.checkpoint) for each in named]
        sources = [(source, checkpoint) for source, checkpoint in made if source is not None]
        if not self.settings.drafts_here:
            return [source for source, _ in sources]
        ngrams = ngrams_for(files.fingerprint, named[0].path) if named else None
        trials = {each.checkpoint.fingerprint: _trial(each.name, files) for each in named}
        return with_drafters(sources, files, ngrams, trials, context=target.context_length, load_first=load_first)


def load_host(
    settings: ServerSettings, progress: Progress, load: LoadExecution | None = None, observer: Observer | None = None
) -> Host:
    """Loads what `settings` names. `load`: makes the target; None: `load_execution`."""
    gate, plan = Gate.of(settings.keys_file), ServerPlan(settings, progress)
    files = plan.files  # cheap checks come before loading the target, which takes many seconds
    read_sampling_defaults(files)  # clients read them: who can correct them learns of it here
    pooling, drafters = find_pooling(files), plan.drafters
    if settings.drafter == AUTO and drafters and drafters[0].name in SHIPPED_DRAFTERS:
        log.info("drafters that come with moa for this model", drafters=", ".join(each.name for each in drafters))
    companion = plan.companion
    if not plan.companion_name and (fitting := fitting_companions(files.config)):
        log.info("no companion is offered", fitting=fitting)
    execution = (load or load_execution)(files, settings, progress)
    served = _served(files, execution, drafters, pooling)
    offered = [
        DrafterFile(path, checkpoint.config.reused_layers, not checkpoint.config.traits.has_own_head)
        for _, path, checkpoint in drafters
    ]
    parts = DrafterFiles(files, served.identity, offered, settings.cache_dir, companion)
    parts.prepare()
    host = Host.assemble(
        served,
        Stepper(execution.target, plan.sources(execution.target)),
        settings,
        drafter_files=parts,
        gate=gate,
        observer=observer,
        thread=InferenceThread(execution.before),
    )
    tokens, services = min(LEAST_TOKENS, served.context_tokens), host.services
    needed = services.size.largest(tokens)
    if settings.kv_bytes and needed > services.pool.budget:
        raise ConfigError(
            f"--kv-bytes {settings.kv_bytes} holds no conversation: one of {tokens:,} tokens takes "
            f"{decimal(needed)} ({needed} bytes).",
            hint="Give several times as much, or leave it out: then it is three quarters of the free memory.",
        )
    return host


def _served(files: ModelFiles, execution: Execution, drafters: Sequence[NamedDrafter], pooling: ModelPooling) -> Served:
    target, test, tokenizer = execution.target, execution.test, load_tokenizer(files)
    if not tokenizer.chat_template:
        log.warning("the model has no chat template", meaning=RAW_TEXT_ONLY)
    ends = end_of_text(files, tokenizer.eos_token_id)
    constraints = constraint_compiler(tokenizer, target.vocab_size, ends)
    if constraints is not None:
        constraints.prepare()
    offered = [
        pb.Drafter(
            name=name,
            fingerprint=bytes.fromhex(checkpoint.fingerprint),
            reused_layers=checkpoint.config.reused_layers,
            tokens_a_forward=TOKENS_A_FORWARD.get(name, 0.0),
        )
        for name, _, checkpoint in drafters
    ]
    return Served(
        identity=pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
            drafter_fingerprint=offered[0].fingerprint if offered else b"",
            execution=execution.fingerprint(ends),
        ),
        execution=execution.described(),
        vocab_size=target.vocab_size,
        context_tokens=target.context_length,
        end_of_text=ends,
        decode=tokenizer.shown,
        drafters=tuple(offered),
        step_ms=test.step_ms if test else 0.0,
        row_shares=RowShares.of_times(test.step_ms, test.times) if test else TORCH,
        constraints=constraints,
        pooling=pooling,
        raw_text_only=not tokenizer.chat_template,
    )


def drafter_paths(
    spec: str, files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None, fetches: bool = False
) -> list[tuple[str, Path]]:
    """The drafters whose memory rows are served, by name; the first is for clients that name none.

    `spec`: "none"; "auto": all that come with moa for this target, else the best on this machine; "default": the former
    only; "deep": that one; or as of `find_drafter`. `cache_dir`, `progress`: as of `resolve`; `fetches`: as of
    `choose_drafter`.
    """
    if spec == "none":
        return []
    if spec not in (AUTO, *SHIPPED_DRAFTERS):
        return [(_served_name(spec), find_drafter(spec, files, cache_dir, progress))]
    if spec not in (AUTO, DEFAULT_DRAFTER):
        hint = "Train one with moa-train fit, or leave --drafter out."
        return [(spec, require_shipped(files.fingerprint, files.target_id, spec, hint=hint))]
    paths = [(name, path) for name in SHIPPED_DRAFTERS if (path := shipped_drafter(files.fingerprint, name))]
    if not paths and spec == AUTO and (chosen := choose_drafter(files, cache_dir, progress, fetches=fetches)):
        name, path = chosen
        return [(_served_name(name), path)]
    if not paths:
        log.warning("there is no drafter for this target: clients get no memory", target=files.target_id)
    return paths


def check_drafter(path: Path, files: ModelFiles) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    config, target = checkpoint.config, files.config
    shapes: dict[str, tuple[object, object]] = {
        "vocabulary": (config.vocab_size, target["vocab_size"]),
        "hidden size": (config.state_width, target["hidden_size"]),
        "number of layers": (config.target_layers, target["num_hidden_layers"]),
    }
    if not config.traits.reads_states:
        shapes["KV width"] = (config.kv_width, kv_width(target))
    if config.target_fingerprint:  # the authors' checkpoints do not name their target: their shapes must fit
        shapes["fingerprint"] = (config.target_fingerprint, files.fingerprint)
    for what, (theirs, ours) in shapes.items():
        if theirs != ours:
            said = f"The drafter {path} is for another target: its {what} is {theirs}, {files.target_id} has {ours}."
            raise CheckpointError(said, hint="Give another --drafter, or --drafter none.")
    reason = plan_of(target).why_not_alone(config.target_layers - config.reused_layers) if config.reused_layers else ""
    if reason:
        raise CheckpointError(
            f"The drafter {path} runs the last {config.reused_layers} layers of {files.target_id} on a device, which"
            f" cannot compute them: {reason}.",
            hint="Give a --drafter that reuses no layers, or --drafter none.",
        )
    checkpoint.check_server_half()
    log.info("drafter loaded", path=str(path), fingerprint=checkpoint.fingerprint[:12])
    return checkpoint


def memory_source(drafter: Checkpoint, target: Target) -> MemorySource | None:
    """What makes the drafter's rows, in the target's precision; None for one that reads nothing of the target."""
    config = drafter.config
    if lacking := config.traits.not_served(config):
        hint = "It is for comparison: moa-train evaluate measures it."
        raise CheckpointError(f"A drafter without {lacking} cannot be served.", hint=hint)
    if config.memory_width == 0:
        return None
    rows, fingerprint = target.memory_rows(drafter), bytes.fromhex(drafter.fingerprint)
    if config.reads_last_hidden:

        def encode(state: Rows) -> Rows:
            return rows(target.normed(state))

        return MemorySource(encode, config.memory_width, None, (target.layer_count,), fingerprint)
    if config.traits.reads_target_cache:
        return MemorySource(
            rows,
            config.memory_width,
            target.layer_count,
            cache_layers=config.memory_layers,
            newest_state=target.normed,
            narrow=(config.traits.window(config), config.memory_widths[0]),
            fingerprint=fingerprint,
        )
    state_layer = target.layer_count - config.reused_layers if config.reused_layers else None
    return MemorySource(rows, config.memory_width, state_layer, config.state_entries, fingerprint)


def with_drafters(
    sources: Sequence[tuple[MemorySource, Checkpoint]],
    files: ModelFiles,
    ngrams: NgramTable | None = None,
    trials: Mapping[str, DrafterTrial] | None = None,
    *,
    context: int = 0,
    load_first: bool = True,
) -> list[MemorySource]:
    """The sources with the drafters that read their rows, for drafts of the server's own.

    Of drafters that read the same rows the first drafts here, whichever the device has: a deeper one takes longer than
    its guesses are worth. `context`: the most tokens of a conversation; 0: as many as the target was made for.
    `load_first`: the first one's weights are loaded now; others' when a session needs them.
    """
    able: list[MemorySource] = []
    first_with: dict[str, MemorySource] = {}  # by what makes the memory rows
    for source, checkpoint in sources:
        shared = first_with.get(checkpoint.memory_fingerprint) if checkpoint.memory_fingerprint else None
        if shared is not None:
            layer = shared.state_layer if shared.state_layer != source.state_layer else None
            able.append(replace(source, drafter=shared.drafter, drafter_layer=layer))
            continue
        states = cache(partial(_load_states, checkpoint, files, context))
        if load_first and not able:
            states()
        config = checkpoint.config
        own = OwnDrafter(
            lambda states=states: states()(),  # type: ignore[misc]
            config.token_bytes,
            ngrams,
            (trials or {}).get(checkpoint.fingerprint) or DrafterTrial(),
            reads_all_rows=config.traits.reads_states or config.traits.reads_target_cache,
            reads_target_cache=config.traits.reads_target_cache,
            block_levels=config.block_levels,
        )
        able.append(replace(source, drafter=own))
        first_with.setdefault(checkpoint.memory_fingerprint, able[-1])
    return able


def _served_name(spec: str) -> str:
    """The name by which clients know a drafter that a user names like this."""
    return Path(spec).absolute().name.removesuffix(".safetensors")  # absolute: "." has no name


def _trial(name: str, files: ModelFiles) -> DrafterTrial:
    """A drafter's trial, whose result is logged."""

    def on_decided(trial: DrafterTrial) -> None:
        if trial.is_dropped:
            log.warning(
                "the drafter guesses worse than look-up and is dropped: is it for this model?",
                drafter=name,
                target=files.target_id,
                figures=trial.figures,
            )
        else:
            log.info("the drafter is kept", drafter=name, figures=trial.figures)

    return DrafterTrial(on_decided)


def _load_states(checkpoint: Checkpoint, files: ModelFiles, context: int) -> NewDrafter:
    reader = WeightReader(files)
    states = checkpoint.states(reader, OWN_WEIGHTS, parts=TargetParts(reader, context=context))
    reader.drop_pages()
    return states
