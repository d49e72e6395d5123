"""Training one drafter: the loop, its checkpoints, and resuming it.

`accelerate` owns processes, devices and gradient averaging; weights compute in bf16 over float32 masters. State of a
run lies in its output folder. Invariant: random draws depend only on (seed, step) and on a row's place in the update's
batch, so an interrupted run resumes to identical weights, and several processes learn what one would with their rows.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from moa_shared.bfloat16 import round_to_bfloat16
from moa_shared.drafter import Checkpoint, DrafterConfig, load_checkpoint, save_checkpoint
from moa_shared.drafter.checkpoint.shipped import DRAFTER_FILE, checkpoint_path
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.errors import ConfigError, MismatchError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import Progress, SilentProgress

from moa_training.data.batch_stream import BatchStream
from moa_training.data.packing import PackedBatch
from moa_training.data.shards import TokenRow, find_shards, read_shard
from moa_training.data.vocabulary import choose_draft_ids
from moa_training.fit.card import write_card
from moa_training.fit.curves import append_point, cut_points, draw_curves
from moa_training.fit.drafter_setup import drafter_config
from moa_training.fit.master_weights import MasterWeights
from moa_training.fit.processes import Processes
from moa_training.fit.run_state import Position, load_state, save_state
from moa_training.fit.schedule import learning_rate
from moa_training.fit.state_losses import StateLosses
from moa_training.fit.warm_start import fit_inputs, starting_tensors
from moa_training.objective.baselines import TrainingBaseline, baseline_objective
from moa_training.objective.batch import draw_objective
from moa_training.objective.blocks import Blocks, own_share, staircase_probability, with_own_choices
from moa_training.objective.blocks_at_once import TrainingBlocks
from moa_training.objective.eagle3 import TrainingEagle3
from moa_training.objective.layer_memory import FastDrafter
from moa_training.objective.losses import Losses, LossWeights, compute_losses
from moa_training.objective.network import Activations
from moa_training.objective.row_share import RowShare
from moa_training.settings import FitSettings
from moa_training.teacher.kernel_teacher import KernelTeacher
from moa_training.teacher.teacher import Teacher
from moa_training.teacher.teacher_cache import TeacherCache

DRAFTER = DRAFTER_FILE
_DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}
# An update takes seconds; what takes longer is a suspended machine or a stopped process, not running time.
_LONGEST_UPDATE_SECONDS = 60.0


class TrainingRun:
    """One training run."""

    def __init__(self, settings: FitSettings, progress: Progress) -> None:
        from accelerate import Accelerator

        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.accelerator = Accelerator()
        self.progress = progress = progress if self.accelerator.is_main_process else SilentProgress()
        self.device = self.accelerator.device
        self.processes = Processes(self.accelerator)
        self.files: ModelFiles = resolve(settings.target, progress=progress)
        self.rows = self._read_rows()
        dtype = _DTYPES[settings.dtype]
        self.config: DrafterConfig = drafter_config(settings, self.files)
        self.teacher = self._load_teacher(dtype)
        self.identity = self._identity()
        self.processes.require_same(self.identity)
        saved = self.processes.from_main(lambda: load_state(settings.output, self.identity))
        self.draft_ids, tensors = self._start(saved)
        self.drafter = self._network().to(self.device)
        self._fill({name: t for name, t in tensors.items() if name != "draft_ids"})
        if settings.drafter.memory_of is not None and isinstance(self.drafter, FastDrafter):
            self.drafter.freeze_encoder()
        self.kept = {
            name: round_to_bfloat16(weight.detach().cpu().numpy())
            for name, weight in self.drafter.named_parameters()
            if not weight.requires_grad
        }
        self.stream = self._batches(self.processes.share)
        self.cache = self._open_cache()
        self.position = Position(self.identity) if saved is None else saved[0]
        if saved is None and settings.drafter.warm_start and settings.start_from is None and not self.kept:
            fit_inputs(self.drafter, self.config, self._sample)
        start = {name: weight.detach().clone() for name, weight in self.drafter.named_parameters()}
        start = self.processes.of_main(start)
        self.drafter.to(dtype)
        self.module = self.accelerator.prepare(self.drafter)
        self.masters = MasterWeights(self.drafter, settings.optimiser, start)
        if saved is not None:
            self.masters.restore(saved[1])
            if self.is_main:
                cut_points(settings.output, self.position.step)
            progress.note(f"Going on from update {self.position.step}, {self.position.tokens:,} tokens.")
        head = self.teacher.head
        self.state_losses = StateLosses(settings, self.config, self.processes, head, self.draft_ids)
        self.head = head if self.draft_ids is None else head[self.draft_ids.to(self.device).long()].contiguous()

    # ------------------------------------------------------------ the loop

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return bool(self.accelerator.is_main_process)

    def train(self) -> Path:
        """Trains until the budget is spent; the checkpoint's path."""
        settings, budget = self.settings, self.settings.budget
        last_update = last_saved = time.monotonic()
        sums: dict[str, float] = {}
        with self.progress.task("training", budget.tokens) as bar:
            self.drafter.train()
            for epoch, following, batch in self.stream.from_position(self.position.epoch, self.position.batch):
                spent = self._spent()
                if spent >= 1.0:
                    break
                rate = learning_rate(settings.optimiser, self.position.step, spent)
                losses = self._losses(batch.to(self.device), spent, epoch)
                self.accelerator.backward(losses.total)
                norm = self.masters.step(rate)
                now = time.monotonic()
                elapsed, tokens = self._agree(min(now - last_update, _LONGEST_UPDATE_SECONDS), batch.tokens)
                last_update = now
                before, seen = self.position, self.position.tokens + tokens
                self.position = Position(
                    self.identity, before.step + 1, epoch, following, seen, before.seconds + elapsed
                )
                bar.reach(min(seen, budget.tokens))
                self._count(losses, norm, rate, sums)
                if self.position.step % settings.report_steps == 0:
                    self._write_point(sums)
                if time.monotonic() - last_saved >= 60 * settings.checkpoint_minutes:
                    self.save()
                    last_saved = time.monotonic()
        if sums:
            self._write_point(sums)
        path = self.save()
        if self.cache is not None:
            self.cache.remove()
        del self.module  # holds the process group
        self.processes.leave()
        return path

    def _agree(self, seconds: float, tokens: int) -> tuple[float, int]:
        """Mean duration and sum of tokens of all processes, so that all end at the same update."""
        if not self.processes.several:
            return seconds, tokens
        mean = self.processes.mean(torch.tensor([seconds, float(tokens)], device=self.device))
        return float(mean[0]), round(float(mean[1]) * self.processes.share.processes)

    def _spent(self) -> float:
        """Share of the budget, 0 to 1 and beyond."""
        budget, position = self.settings.budget, self.position
        by_time = position.seconds / (60 * budget.minutes) if budget.minutes else 0.0
        return max(position.tokens / budget.tokens, by_time)

    def _losses(self, batch: PackedBatch, spent: float, epoch: int) -> Losses:
        settings = self.settings
        generator = torch.Generator().manual_seed((settings.seed * 1_000_003 + self.position.step) * 4096)
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))  # the memory's gradient share draws
        if self.config.traits.reads_states:
            return self.state_losses(self.module, self._run_teacher(batch, epoch), batch, generator)
        if self._objective == "memory":
            staircase = staircase_probability(round(1e6 * spent), 1_000_000)
            drawn = draw_objective(batch, settings.blocks, staircase, generator, self.processes.share)
            blocks, weight = drawn.blocks, drawn.weight
        else:
            blocks, weight = baseline_objective(batch, settings.blocks)
        target = self._run_teacher(batch, epoch)
        if float(torch.rand((), generator=generator)) < own_share(spent, settings.blocks.own_text):
            target = self._with_own_text(target, batch, blocks, generator)
        weights = LossWeights(settings.losses.cross_entropy, settings.losses.feature, settings.losses.count_starts)
        return compute_losses(
            self.module(target, blocks), target, self.head, weight, weights, blocks.is_start, self.processes.mean
        )

    def _run_teacher(self, batch: PackedBatch, epoch: int) -> Activations:
        return self.teacher.run_packed(batch) if self.cache is None else self.cache.run_packed(batch, epoch)

    @torch.no_grad()
    def _with_own_text(
        self, target: Activations, batch: PackedBatch, blocks: Blocks, generator: torch.Generator
    ) -> Activations:
        """The target's activations where half of what follows a block's beginning is what the drafter says there."""
        choices = (self.module(target, blocks).feature @ self.head.t()).argmax(-1)
        if self.draft_ids is not None:
            choices = self.draft_ids.to(choices.device).long()[choices]
        own = with_own_choices(batch.ids, choices, blocks, generator, self.processes.share)
        return self.teacher.run_behind(target, own, blocks)

    def _count(self, losses: Losses, norm: float, rate: float, sums: dict[str, float]) -> None:
        """Adds an update of all processes to the running means."""
        parts = {name: getattr(losses, name) for name in ("total", "cross_entropy", "feature", "state", "agreement")}
        named = {name: part.detach() for name, part in parts.items() if part is not None}
        for name, value in zip(named, self.processes.mean(torch.stack(list(named.values()))).tolist(), strict=True):
            sums[name] = sums.get(name, 0.0) + value
        sums["gradient_norm"] = sums.get("gradient_norm", 0.0) + norm
        sums["learning_rate"] = sums.get("learning_rate", 0.0) + rate
        sums["count"] = sums.get("count", 0.0) + 1

    def _write_point(self, sums: dict[str, float]) -> None:
        """Writes the means since the last point down."""
        count = sums.pop("count")
        means = {name: value / count for name, value in sums.items()}
        sums.clear()
        if self.accelerator.is_main_process:
            self.settings.output.mkdir(parents=True, exist_ok=True)
            place = {"step": self.position.step, "tokens": self.position.tokens, "seconds": self.position.seconds}
            append_point(self.settings.output, {**place, **means})

    # ------------------------------------------------------------ beginning and end

    def save(self) -> Path:
        """Writes drafter, card, curves, and last the training state."""
        output = self.settings.output
        path = output / DRAFTER
        if not self.accelerator.is_main_process:
            return path
        tensors: dict[str, npt.NDArray[Any]] = {
            name: round_to_bfloat16(master.detach().cpu().numpy()) for name, master in self.masters.masters.items()
        } | self.kept
        if self.draft_ids is not None:
            tensors["draft_ids"] = self.draft_ids.numpy()
        save_checkpoint(path, self.config, tensors)
        draw_curves(output)
        write_card(output, self.settings, self.config, self.files, self.position, len(self.rows))
        state: dict[str, torch.Tensor] = dict(self.masters.state())
        if self.draft_ids is not None:
            state["draft_ids"] = self.draft_ids
        save_state(output, self.position, state)
        return path

    def _load_teacher(self, dtype: torch.dtype) -> Teacher:
        config = self.config
        if self.settings.execution == "int8":
            return KernelTeacher.load_int8(
                self.files, config.reused_layers, dtype, self.device, self.progress, config.state_entries
            )
        return Teacher.load(self.files, config.reused_layers, dtype, self.device, config.state_entries)

    def _open_cache(self) -> TeacherCache | None:
        """The cache of this process; None if nothing is to be kept."""
        settings = self.settings
        if not settings.cache.gigabytes:
            return None
        path = settings.output / f"activations-{self.accelerator.process_index}.int8"
        return TeacherCache(self.teacher, path, int(settings.cache.gigabytes * 1e9), self.progress)

    def _batches(self, share: RowShare) -> BatchStream:
        """The batches of one process."""
        settings = self.settings
        return BatchStream(
            self.rows,
            batch_rows=settings.optimiser.batch_rows,
            row_tokens=settings.optimiser.row_tokens,
            seed=settings.seed,
            process=share.process,
            processes=share.processes,
            repeat=settings.cache.gigabytes > 0,
        )

    def _read_rows(self) -> list[TokenRow]:
        vocab = int(self.files.config["vocab_size"])
        rows: list[TokenRow] = []
        for path in find_shards(self.settings.shards):
            rows += read_shard(path, self.files.tokenizer_hash, vocab)
        return rows

    def _start(self, saved: Any) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """Draft vocabulary and first tensors, with the memory encoder of `drafter.memory_of`."""
        draft_ids, tensors = self._first_tensors(saved)
        if self.settings.drafter.memory_of is not None:
            tensors |= self._encoder_of(self.settings.drafter.memory_of)
        return draft_ids, tensors

    def _encoder_of(self, path: Path) -> dict[str, torch.Tensor]:
        """The tensors of another drafter's memory encoder."""
        other = self._same_target(path)
        sizes = ("ca_kv_heads", "lsa", "lsa_heads", "lsa_kv_heads", "lsa_mlp", "unscaled_memory_rope")
        for name in sizes:
            theirs, ours = getattr(other.config, name), getattr(self.config, name)
            if theirs != ours:
                raise ConfigError(
                    f"drafter.{name} is {ours}, but {path}, whose memory is to be read, has {theirs}.",
                    hint="Set it to that drafter's own.",
                )
        return {name: t for name, t in other.torch_tensors().items() if name.startswith(ENCODER_TENSORS)}

    def _same_target(self, path: Path) -> Checkpoint:
        """Another drafter; raises MismatchError if it was made for another target."""
        other = load_checkpoint(checkpoint_path(path))
        if other.config.target_fingerprint != self.files.fingerprint:
            raise MismatchError(
                f"The drafter {path} was made for another target "
                f"({other.config.target_fingerprint[:12]}, this one is {self.files.fingerprint[:12]}).",
                hint="Name the target that it was made for.",
            )
        return other

    def _first_tensors(self, saved: Any) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """Of the saved run, of the drafter to continue from, or fresh ones."""
        settings = self.settings
        if saved is not None:
            tensors = {name.removeprefix("master."): t for name, t in saved[1].items() if name.startswith("master.")}
            return saved[1].get("draft_ids"), tensors
        if settings.start_from is not None:
            begun = self._same_target(settings.start_from)
            for name in ("kind", "ca", "reused_layers", "state_entries", "block_size", "mask_token"):
                ours, theirs = getattr(self.config, name), getattr(begun.config, name)
                if ours != theirs:
                    raise ConfigError(
                        f"drafter.{name} is {ours}, but {settings.start_from} has {theirs}.",
                        hint="Set it to the drafter's own.",
                    )
            self.config = begun.config
            tensors = begun.torch_tensors()
            return tensors.pop("draft_ids", None), tensors
        draft_ids = None
        if self.config.draft_vocab:
            draft_ids, covered = choose_draft_ids(self.rows, self.config.draft_vocab, self.config.vocab_size)
            self.progress.note(f"The draft vocabulary covers {100 * covered:.1f} % of the answers' tokens.")
        warm = settings.drafter.warm_start
        return draft_ids, starting_tensors(
            self.config,
            self.teacher,
            draft_ids,
            settings.seed,
            warm=warm,
            norms_near_zero=settings.drafter.norms_near_zero,
        )

    def _fill(self, tensors: dict[str, torch.Tensor]) -> None:
        """Gives the network its tensors; raises ConfigError for a drafter of a form that is only served."""
        others = sorted(tensors.keys() ^ self.drafter.state_dict().keys())
        if others or self.config.anchor_guesses:
            what = others[0] if others else "anchor_guesses"
            raise ConfigError(
                f"{self.settings.start_from} is {self.config.kind} of a form that is not trained here ({what}).",
                hint="Leave start_from out.",
            )
        self.drafter.load_state_dict(tensors)

    @property
    def _objective(self) -> str:
        return self.config.traits.objective

    def _network(self) -> FastDrafter | TrainingBaseline | TrainingEagle3 | TrainingBlocks:
        """The network in its training form."""
        settings = self.settings
        match self._objective:
            case "steps":
                return TrainingEagle3(self.config)
            case "blocks":
                return TrainingBlocks(self.config, self.teacher.embeddings[self.config.mask_token])
            case "positions":
                baseline = TrainingBaseline(self.config, settings.drafter.eagle_noise)
                baseline.share = self.processes.share
                return baseline
        inject = settings.losses.inject_true_state
        drafter = FastDrafter(self.config, self.teacher.reused, self.teacher.final_norm, inject_true_state=inject)
        drafter.gradient_share = settings.optimiser.memory_gradient_share
        rows_before = self.processes.share.process * settings.optimiser.batch_rows
        drafter.tokens_before = rows_before * settings.optimiser.row_tokens
        return drafter

    def _sample(self, layer: int, tokens: int) -> tuple[Activations, torch.Tensor]:
        """Activations of the first batches, of all processes' rows, and the state that enters a layer of the target.

        They are fewer than `tokens` where the text is: more of the same would not change a regression.
        """
        states: list[torch.Tensor] = []
        hook = self.teacher.model.model.layers[layer].register_forward_pre_hook(
            lambda _, inputs: states.append(inputs[0])
        )
        kept: list[Activations] = []
        share = self.processes.share
        streams = [self._batches(replace(share, process=each)).from_position(0, 0) for each in range(share.processes)]
        for following in zip(*streams, strict=True):
            if any(epoch for epoch, _, _ in following) or sum(part.positions.numel() for part in kept) >= tokens:
                break
            batches = [batch.to(self.device) for _, _, batch in following]
            kept += [Teacher.run_packed(self.teacher, batch) for batch in batches]  # in torch, which runs the hook
        hook.remove()
        both = [(part.embeddings, part.kv, part.last_hidden, part.positions) for part in kept]
        embeddings, kv, last_hidden, positions = (torch.cat(parts) for parts in zip(*both, strict=True))
        entries = torch.cat([part.entry_states for part in kept]) if self.config.state_entries else None
        return Activations(embeddings, kv, last_hidden, None, positions, entries=entries), torch.cat(states)

    def _identity(self) -> str:
        optimiser = self.settings.optimiser
        rows = self.processes.share.total(optimiser.batch_rows)  # of an update; it does not matter who computes them
        whole = self.settings.model_copy(update={"optimiser": optimiser.model_copy(update={"batch_rows": rows})})
        sizes = [len(self.rows), sum(len(row.ids) for row in self.rows), 1]
        content = json.dumps([whole.identity(), sizes, self.files.fingerprint], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
