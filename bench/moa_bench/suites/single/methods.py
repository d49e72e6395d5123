"""The methods of one run: the target without and with every drafter that is given, each as chain, tree and as served.

State: the target, loaded once, and each drafter's weights. All methods run in this process, on its one thread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moa_server.engine.planning.schedule import HasSession, Schedule
from moa_server.engine.stepper import MemorySource, SessionTensors, Stepper
from moa_server.loading import check_drafter, memory_source, with_drafters
from moa_server.session.session import SessionLimits
from moa_server.verifier import Target
from moa_shared.drafter import Checkpoint
from moa_shared.drafter.checkpoint.ngram_file import ngrams_for
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, shipped_drafter
from moa_shared.drafter.published.find import find_drafter
from moa_shared.drafting import ConversationDrafter
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.tokenizer.end_of_text import end_of_text
from moa_shared.programs.progress import Progress
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.targets import load_level
from moa_bench.suites.single import SingleEffort
from moa_bench.suites.single.drafts import CopiedChain, DrafterDrafts
from moa_bench.suites.single.figures import PLAIN
from moa_bench.suites.single.local_server import FixedServer, GrowingServer, LocalAnswer, SessionRules

LOOKUP = "prompt look-up"
CHAIN, TREE, SERVED = "chain", "tree", "as served"
PAPER = ("EAGLE-2", "independent", *(f"MoA, N = {count}" for count in (0, 1, 3, 6, 12)))  # the paper's drafters

AskLocally = Callable[[Sequence[int], AnswerSettings], LocalAnswer]


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """What all methods share."""

    target: Target  # loaded once
    rules: SessionRules
    step_ms: float  # of a plain step, until the first ones are measured
    row_ms: float  # of a further row

    def served(self, sources: Sequence[MemorySource], *, drafts: bool) -> AskLocally:
        """Answers as `moa-server serve` gives them: with drafts that grow while they pay, or by plain steps."""
        schedule = Schedule[HasSession](self.row_ms / self.step_ms, self.step_ms)
        return partial(GrowingServer(Stepper(self.target, sources), self.rules, schedule).ask, drafts=drafts)

    def copying(self, nodes: int) -> AskLocally:
        return FixedServer(Stepper(self.target), self.rules, lambda _: CopiedChain(nodes)).ask

    def drafting(
        self, new: Callable[[], ConversationDrafter], shape: TreeShape | int, source: MemorySource | None
    ) -> AskLocally:

        def drafts(tensors: SessionTensors) -> DrafterDrafts:
            return DrafterDrafts(new(), shape, tensors, source)

        stepper = Stepper(self.target, [source] if source is not None else [])
        return FixedServer(stepper, self.rules, drafts, source).ask


def load_engine(files: ModelFiles, level: str, progress: Progress) -> LocalEngine:
    """The target as `moa-server serve` on one thread has it."""
    execution = load_level(files, level, progress)
    target, test, tokenizer = execution.target, execution.test, load_tokenizer(files)
    limits = SessionLimits(target.context_length, target.vocab_size)
    return LocalEngine(
        target,
        SessionRules(limits, end_of_text(files, tokenizer.eos_token_id), tokenizer.shown),
        test.step_ms if test is not None else 100.0,
        test.row_ms if test is not None else 1.0,
    )


def methods_of(
    engine: LocalEngine, files: ModelFiles, drafters: Mapping[str, Checkpoint], effort: SingleEffort
) -> dict[str, AskLocally]:
    """All methods by name, plain serving first.

    Args:
        drafters: by the names that tables give them.
    """
    methods = {PLAIN: engine.served([], drafts=False), LOOKUP: engine.copying(effort.copies)}
    tree = TreeShape(effort.depth, effort.breadth, effort.nodes)
    ngrams = ngrams_for(files.fingerprint)
    reader = WeightReader(files)
    for name, checkpoint in drafters.items():
        source, states = memory_source(checkpoint, engine.target), checkpoint.states(reader)
        methods[f"{name}: {CHAIN}"] = engine.drafting(states, effort.chain, source)
        methods[f"{name}: {TREE}"] = engine.drafting(states, tree, source)
        if source is not None:
            sources = with_drafters([source], [checkpoint], files, ngrams, load_first=False)
            methods[f"{name}: {SERVED}"] = engine.served(sources, drafts=True)
    return methods


def drafter_name(checkpoint: Checkpoint) -> str:
    """What tables call a checkpoint."""
    return checkpoint.config.method


def missing_drafters(drafters: Mapping[str, Checkpoint]) -> list[str]:
    """Drafters of the paper of which no checkpoint is given."""
    given = {drafter_name(checkpoint) for checkpoint in drafters.values()}
    return [name for name in PAPER if name not in given]


def load_drafters(files: ModelFiles, named: Mapping[str, Path]) -> dict[str, Checkpoint]:
    """The drafters to measure; those that come with the package where none is named."""
    if named:
        return {name: check_drafter(find_drafter(str(path), files), files) for name, path in named.items()}
    shipped = [shipped_drafter(files.fingerprint, name) for name in SHIPPED_DRAFTERS]
    checkpoints = [check_drafter(path, files) for path in shipped if path is not None]
    return {drafter_name(checkpoint): checkpoint for checkpoint in checkpoints}
