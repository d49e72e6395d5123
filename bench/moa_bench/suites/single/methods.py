"""The target without and with every drafter that is given, each as chain, tree and as served; on one thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from moa_server.drafting.draft_decision import MemorySource, OwnDrafter
from moa_server.drafting.forward_cost import TORCH, RowShares
from moa_server.engine.schedule import HasSession, Schedule
from moa_server.engine.stepper import ServerDrafts, Stepper
from moa_server.loading import check_drafter, memory_source, with_drafters
from moa_server.session.session import SessionLimits
from moa_server.verifier import Target
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, shipped_drafter
from moa_shared.drafter.checkpoint.statistics import ngrams_for
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.files import end_of_text
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.oracle import SECOND_GUESS, OracleDrafter, Script
from moa_bench.harness.stage import load_level
from moa_bench.registry import SingleEffort
from moa_bench.suites.single.local_server import (
    Ask,
    FixedDrafts,
    GrowingDrafts,
    LocalServer,
    MethodAnswer,
    SessionRules,
    copied_chains,
    drafter_drafts,
)
from moa_bench.suites.single.tables import PLAIN

LOOKUP = "prompt look-up"
# Of a plain step that a draft step takes: one layer of 32, and a head of 32,000 tokens, as EAGLE-3's for an 8B.
DRAFT_SHARE = 0.05
CHAIN, TREE, SERVED = "chain", "tree", "as served"


@dataclass(frozen=True, slots=True)
class LocalEngine:
    target: Target  # loaded once
    rules: SessionRules
    step_ms: float  # of a plain step, until the first ones are measured
    row_shares: RowShares  # what further rows add

    def plain(self) -> Ask:
        return LocalServer(Stepper(self.target), self.rules).ask

    def served(self, sources: Sequence[MemorySource]) -> Ask:
        """Answers as `moa-server serve` gives them, with drafts that grow while they pay."""
        schedule, server = Schedule[HasSession](self.row_shares, self.step_ms), ServerDrafts()
        return LocalServer(
            Stepper(self.target, sources),
            self.rules,
            lambda session, tensors, most: GrowingDrafts(session, tensors, server, schedule),
            sources[0],
        ).ask

    def copying(self, nodes: int) -> Ask:
        return LocalServer(
            Stepper(self.target),
            self.rules,
            lambda session, tensors, most: FixedDrafts(session, most, copied_chains(nodes)),
        ).ask

    def drafting(
        self, new: Callable[[], ConversationDrafter], shape: TreeShape | int, source: MemorySource | None = None
    ) -> Ask:
        return LocalServer(
            Stepper(self.target, [source] if source is not None else []),
            self.rules,
            lambda session, tensors, most: FixedDrafts(
                session, most, drafter_drafts(new(), shape, tensors, source, self.rules.sampling)
            ),
            source,
        ).ask


def load_engine(files: ModelFiles, level: str, progress: Progress, sampling: Sampling) -> LocalEngine:
    execution = load_level(files, level, progress)
    target, test, tokenizer = execution.target, execution.test, load_tokenizer(files)
    limits = SessionLimits(target.context_length, target.vocab_size)
    return LocalEngine(
        target,
        SessionRules(limits, end_of_text(files, tokenizer.eos_token_id), tokenizer.shown, sampling),
        test.step_ms if test is not None else 100.0,
        RowShares.of_times(test.step_ms, test.times) if test is not None else TORCH,
    )


def methods_of(
    engine: LocalEngine,
    files: ModelFiles,
    drafters: Mapping[str, Checkpoint],
    effort: SingleEffort,
) -> dict[str, Ask]:
    """All methods by name, plain serving first; `drafters` are by the names that tables give them."""
    methods = {PLAIN: engine.plain(), LOOKUP: engine.copying(effort.copies)}
    tree = TreeShape(effort.depth, effort.breadth, effort.nodes)
    ngrams = ngrams_for(files.fingerprint)
    reader = WeightReader(files)
    for name, checkpoint in drafters.items():
        source, states = memory_source(checkpoint, engine.target), checkpoint.states(reader)
        methods[f"{name}: {CHAIN}"] = engine.drafting(states, effort.chain, source)
        methods[f"{name}: {TREE}"] = engine.drafting(states, tree, source)
        if source is not None:
            sources = with_drafters([(source, checkpoint)], files, ngrams, load_first=False)
            methods[f"{name}: {SERVED}"] = engine.served(sources)
    return methods


def oracle_methods(engine: LocalEngine, effort: SingleEffort) -> dict[str, Ask]:
    """Plain serving, and oracles of each acceptance that replay what it wrote last: of a question that it answers
    before them. Each as a chain, and as served; of the best, trees too.
    """
    plain, text = engine.plain(), [0]

    def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
        answer = plain(prompt, most)
        text[:] = [*prompt, *answer.tokens]
        return answer

    def new(acceptance: float, second: float) -> OracleDrafter:
        script = Script(tuple(text), acceptance, 0, engine.target.vocab_size, second)
        return OracleDrafter(script, DRAFT_SHARE * engine.step_ms)

    def blind(new: Callable[[], ConversationDrafter]) -> MemorySource:
        """Rows that say nothing, for a drafter that needs none."""
        return MemorySource(lambda rows: np.zeros((len(rows), 1), np.float32), 1, None, drafter=OwnDrafter(new, 1))

    found: dict[str, Ask] = {PLAIN: ask, LOOKUP: engine.copying(effort.copies)}
    for acceptance in effort.acceptances:
        once = partial(new, acceptance, 0.0)
        found[f"oracle, {acceptance:g}: {CHAIN}"] = engine.drafting(once, effort.chain)
        found[f"oracle, {acceptance:g}: {SERVED}"] = engine.served([blind(once)])
        if acceptance == max(effort.acceptances) and 0 < acceptance < 1:
            twice, tree = partial(new, acceptance, SECOND_GUESS), TreeShape(effort.depth, 2, effort.nodes)
            found[f"oracle, {acceptance:g}, trees: {TREE}"] = engine.drafting(twice, tree)
            found[f"oracle, {acceptance:g}, trees: {SERVED}"] = engine.served([blind(twice)])
    return found


def load_drafters(files: ModelFiles, named: Mapping[str, Path]) -> dict[str, Checkpoint]:
    """The drafters to measure; those that come with moa where none is named."""
    if any(str(path).startswith("companion:") for path in named.values()):
        said = "Version 0.2.0 was the last with companions in `moa-bench single`."
        raise ConfigError(said, hint="`moa-bench alone` measures them.")
    if named:
        return {name: check_drafter(find_drafter(str(path), files), files) for name, path in named.items()}
    shipped = [shipped_drafter(files.fingerprint, name) for name in SHIPPED_DRAFTERS]
    checkpoints = [check_drafter(path, files) for path in shipped if path is not None]
    return {checkpoint.config.method: checkpoint for checkpoint in checkpoints}
