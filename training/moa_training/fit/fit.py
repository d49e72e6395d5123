"""Training one drafter: the loop, its checkpoints, and resuming it.

`accelerate` owns processes, devices and gradient averaging; weights compute in bf16 over float32 masters. State of a
run lies in its output folder. Invariant: random draws depend only on (seed, step) and on a row's place in the update's
batch, so an interrupted run resumes to identical weights, and several processes learn what one would with their rows.
"""

import hashlib
import json
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from accelerate.utils import broadcast
from moa_shared.drafter.checkpoint import DRAFTER_FILE, Checkpoint, load_checkpoint, save_checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.errors import ConfigError, MismatchError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import round_to_bfloat16

from moa_training.data.batches import BatchStream, PackedBatch, RowShare
from moa_training.data.shards import find_shards, read_shard
from moa_training.fit.run_state import MasterWeights, Position, Processes, learning_rate, load_state, save_state
from moa_training.fit.setup import OBJECTIVES, choose_draft_ids, drafter_config, starting_tensors
from moa_training.objective.objective import Lesson, Losses, Update
from moa_training.report import append_point, cut_points, draw_curves, write_card
from moa_training.settings import FitSettings
from moa_training.teacher.teacher import Activations, Teacher, load_teacher

Tensors = dict[str, torch.Tensor]
_DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}
# An update takes seconds; what takes longer is a suspended machine or a stopped process, not running time.
_LONGEST_UPDATE_SECONDS = 60.0
_REPORTED = ("total", "cross_entropy", "feature", "state", "agreement")
_SAME_TO_CONTINUE = ("kind", "ca", "reused_layers", "state_entries", "block_size", "mask_token")
_SAME_TO_READ_MEMORY = ("ca_kv_heads", "lsa", "lsa_heads", "lsa_kv_heads", "lsa_mlp", "unscaled_memory_rope")


class TrainingRun:
    def __init__(self, settings: FitSettings, progress: Progress) -> None:
        from accelerate import Accelerator

        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.settings = settings
        self.accelerator = Accelerator()
        self.is_main = bool(self.accelerator.is_main_process)  # the one that writes and speaks
        self.progress = progress = progress if self.is_main else Progress()
        self.device = self.accelerator.device
        self.processes = Processes(self.accelerator)
        self.files: ModelFiles = resolve(settings.target, progress=progress)
        self.rows = [
            row
            for path in find_shards(settings.shards)
            for row in read_shard(path, self.files.tokenizer_hash, int(self.files.config["vocab_size"]))
        ]
        config, dtype = drafter_config(settings, self.files), _DTYPES[settings.dtype]
        self.teacher = load_teacher(
            self.files, config.reused_layers, dtype, self.device, config.state_entries,
            progress if settings.execution == "int8" else None,
        )  # fmt: skip
        self.identity = self._identity()
        self.processes.require_same(self.identity)
        saved = self.processes.from_main(lambda: load_state(settings.output, self.identity))
        self.config, self.draft_ids, tensors = self._start(config, saved)
        share, mean = self.processes.share, self.processes.mean
        self.objective = OBJECTIVES[self.config.traits.objective](
            Lesson(settings, self.config, self.teacher, self.draft_ids, share, mean)
        )
        self.drafter = self.objective.network().to(self.device)
        self._fill(tensors)
        self.kept = {
            name: round_to_bfloat16(weight.detach().cpu().numpy())
            for name, weight in self.drafter.named_parameters()
            if not weight.requires_grad
        }
        self.stream = self._batches(share)
        self.position = Position(self.identity) if saved is None else saved[0]
        if saved is None and settings.drafter.warm_start and settings.start_from is None and not self.kept:
            self.objective.fit_inputs(self.drafter, self._sample)
        # The main process's values: another machine may round otherwise.
        start = {name: broadcast(weight.detach().clone()) for name, weight in self.drafter.named_parameters()}
        self.drafter.to(dtype)
        self.module = self.accelerator.prepare(self.drafter)
        self.masters = MasterWeights(self.drafter, settings.optimiser, start)
        if saved is not None:
            self.masters.restore(saved[1])
            if self.is_main:
                cut_points(settings.output, self.position.step)
            progress.note(f"Going on from update {self.position.step}, {self.position.tokens:,} tokens.")

    # ------------------------------------------------------------ the loop

    def train(self) -> Path:
        """Trains until the budget is spent; the checkpoint's path."""
        settings, budget = self.settings, self.settings.budget
        last_update = last_saved = time.monotonic()
        sums: Any = Counter()  # of what was reported since the last point
        with self.progress.task("training", budget.tokens) as bar:
            self.drafter.train()
            for epoch, following, batch in self.stream.from_position(self.position.epoch, self.position.batch):
                spent = self._spent()
                if spent >= 1.0:
                    break
                rate = learning_rate(settings.optimiser, self.position.step, spent)
                losses = self._losses(batch.to(self.device), spent)
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
                parts = {name: part.detach() for name in _REPORTED if (part := getattr(losses, name)) is not None}
                means = self.processes.mean(torch.stack(list(parts.values()))).tolist()
                sums.update(dict(zip(parts, means, strict=True)), gradient_norm=norm, learning_rate=rate, count=1.0)
                if self.position.step % settings.report_steps == 0:
                    self._write_point(sums)
                if time.monotonic() - last_saved >= 60 * settings.checkpoint_minutes:
                    self.save()
                    last_saved = time.monotonic()
        if sums:
            self._write_point(sums)
        path = self.save()
        del self.module  # holds the process group
        self.processes.leave()
        return path

    def _agree(self, seconds: float, tokens: int) -> tuple[float, int]:
        """Mean duration and sum of tokens of all processes, so that all end at the same update."""
        mean = self.processes.mean(torch.tensor([seconds, float(tokens)], device=self.device, dtype=torch.float64))
        return float(mean[0]), round(float(mean[1]) * self.processes.share.processes)

    def _spent(self) -> float:
        """Share of the budget, 0 to 1 and beyond."""
        budget, position = self.settings.budget, self.position
        by_time = position.seconds / (60 * budget.minutes) if budget.minutes else 0.0
        return max(position.tokens / budget.tokens, by_time)

    def _losses(self, batch: PackedBatch, spent: float) -> Losses:
        generator = torch.Generator().manual_seed((self.settings.seed * 1_000_003 + self.position.step) * 4096)
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))  # the memory's gradient share draws
        return self.objective.losses(self.module, Update(batch, self.teacher.run_packed(batch), spent, generator))

    def _write_point(self, sums: dict[str, float]) -> None:
        count = sums.pop("count")
        means = {name: value / count for name, value in sums.items()}
        sums.clear()
        if self.is_main:
            self.settings.output.mkdir(parents=True, exist_ok=True)
            place = {"step": self.position.step, "tokens": self.position.tokens, "seconds": self.position.seconds}
            append_point(self.settings.output, {**place, **means})

    def save(self) -> Path:
        """Writes drafter, card, curves, and last the training state."""
        output, config = self.settings.output, self.config
        path = output / DRAFTER_FILE
        if not self.is_main:
            return path
        tensors: dict[str, npt.NDArray[Any]] = {
            name: round_to_bfloat16(master.detach().cpu().numpy()) for name, master in self.masters.masters.items()
        } | self.kept
        state = self.masters.state()
        if self.draft_ids is not None:
            tensors["draft_ids"] = self.draft_ids.numpy()
            state["draft_ids"] = self.draft_ids
        save_checkpoint(path, config, tensors)
        draw_curves(output)
        place = {"conversations": len(self.rows), **asdict(self.position)}
        write_card(output, config, self.settings, self.files, place)
        save_state(output, self.position, state)
        return path

    # ------------------------------------------------------------ the beginning

    def _batches(self, share: RowShare) -> BatchStream:
        settings, optimiser = self.settings, self.settings.optimiser
        return BatchStream(
            self.rows, batch_rows=optimiser.batch_rows, row_tokens=optimiser.row_tokens, seed=settings.seed, share=share
        )

    def _start(
        self, config: DrafterConfig, saved: tuple[Position, Tensors] | None
    ) -> tuple[DrafterConfig, torch.Tensor | None, Tensors]:
        """Configuration, draft vocabulary and first tensors: of the saved run, of the drafter to continue from, or
        fresh ones; with the memory encoder of `drafter.memory_of`.
        """
        settings, draft_ids = self.settings, None
        if saved is not None:
            tensors = {name.removeprefix("master."): t for name, t in saved[1].items() if name.startswith("master.")}
            draft_ids = saved[1].get("draft_ids")
        elif settings.start_from is not None:
            begun = self._similar(settings.start_from, config, _SAME_TO_CONTINUE)
            config, tensors = begun.config, begun.torch_tensors()
            draft_ids = tensors.get("draft_ids")
        else:
            if config.draft_vocab:
                draft_ids, covered = choose_draft_ids(self.rows, config.draft_vocab, config.vocab_size)
                self.progress.note(f"The draft vocabulary covers {100 * covered:.1f} % of the answers' tokens.")
            warm = settings.drafter.warm_start
            tensors = starting_tensors(config, self.teacher, draft_ids, settings.seed, warm=warm)
        if settings.drafter.memory_of is not None:
            words = ", whose memory is to be read,"
            other = self._similar(settings.drafter.memory_of, config, _SAME_TO_READ_MEMORY, words)
            tensors |= {name: t for name, t in other.torch_tensors().items() if name.startswith(ENCODER_TENSORS)}
        tensors.pop("draft_ids", None)
        return config, draft_ids, tensors

    def _similar(self, path: Path, config: DrafterConfig, names: tuple[str, ...], words: str = "") -> Checkpoint:
        """Another drafter, whose named values must be this one's."""
        other = load_checkpoint(path / DRAFTER_FILE if path.is_dir() else path)
        if other.config.target_fingerprint != self.files.fingerprint:
            raise MismatchError(
                f"The drafter {path} was made for another target "
                f"({other.config.target_fingerprint[:12]}, this one is {self.files.fingerprint[:12]}).",
                hint="Name the target that it was made for.",
            )
        for name in names:
            ours, theirs = getattr(config, name), getattr(other.config, name)
            if ours != theirs:
                hint = "Set it to that drafter's own."
                raise ConfigError(f"drafter.{name} is {ours}, but {path}{words} has {theirs}.", hint=hint)
        return other

    def _fill(self, tensors: Tensors) -> None:
        """Gives the network its tensors; raises ConfigError for a drafter of a form that is only served."""
        others = sorted(tensors.keys() ^ self.drafter.state_dict().keys())
        if others or self.config.anchor_guesses:
            what = others[0] if others else "anchor_guesses"
            raise ConfigError(
                f"{self.settings.start_from} is {self.config.kind} of a form that is not trained here ({what}).",
                hint="Leave start_from out.",
            )
        self.drafter.load_state_dict(tensors)

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
        whole = replace(self.settings, optimiser=replace(optimiser, batch_rows=rows))
        sizes = [len(self.rows), sum(len(row.ids) for row in self.rows), 1]
        content = json.dumps([whole.identity(), sizes, self.files.fingerprint], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()
