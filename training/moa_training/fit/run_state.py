"""The state of a training run: its processes, masters of the weights, and the file that it is resumed from.

The file is written to a partial file, flushed, then renamed, so that a kill at any point leaves the last whole one.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError, MismatchError
from moa_shared.programs.atomic import whole_file
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from moa_training.data.batches import RowShare
from moa_training.settings import OptimiserSettings

NAME = "training_state.safetensors"
LOCK = ".fit.lock"
_KEY = "moa_run"


@dataclass(frozen=True, slots=True)
class Position:
    identity: str  # hash of the settings and data that the run was begun with
    step: int = 0  # updates done
    epoch: int = 0  # of the next batch
    batch: int = 0
    tokens: int = 0  # seen by all processes
    seconds: float = 0.0  # of running time


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Keeps other runs out of an output folder."""
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK, blocking=False):
            yield
    except filelock.Timeout:
        raise ConfigError(
            f"Another run is training into {folder}.", hint="Wait for it, or give this run another output folder."
        ) from None


def save_state(folder: Path, position: Position, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the state; raises DiskFullError if there is no room, and the last whole state stays."""
    path = folder / NAME
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with whole_file(path, durable=True) as partial:
            save_file(content, partial, {_KEY: json.dumps(asdict(position))})
    except (OSError, SafetensorError) as error:
        raise DiskFullError(
            f"The training state {path} cannot be written ({error}); the last whole one is kept.",
            hint="Free some space and start the same command again: it continues from there.",
        ) from None


def load_state(folder: Path, identity: str) -> tuple[Position, dict[str, torch.Tensor]] | None:
    """The last whole state; None where there is none."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            position = Position(**json.loads((file.metadata() or {})[_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"The training state {path} is damaged ({error}).", hint="Delete it to begin again, or restore a copy."
        ) from None
    if position.identity != identity:
        raise CheckpointError(
            f"The training state {path} belongs to a run with other settings or data.",
            hint="Give this run another output folder, or delete that file to begin again.",
        )
    return position, tensors


_MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(settings: OptimiserSettings, step: int, progress: float) -> float:
    """Learning rate at update `step` (from 0), with `progress` (0 to 1) of the budget spent.

    Linear warm-up, then half a cosine to the final rate.
    """
    warm = min(1.0, (step + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    low = settings.final_learning_rate
    return warm * (low + (settings.learning_rate - low) * share)


class MasterWeights:
    """AdamW over float32 masters of a module's trainable parameters, which may be in bfloat16."""

    def __init__(self, module: nn.Module, settings: OptimiserSettings, start: Mapping[str, torch.Tensor]) -> None:
        self._weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.masters = {name: start[name].to(w.device, torch.float32).clone() for name, w in self._weights.items()}
        self._clip = settings.clip
        self._adam = torch.optim.AdamW(
            list(self.masters.values()), lr=0.0, betas=(settings.beta1, settings.beta2), weight_decay=0.0
        )
        self._write_back()

    def step(self, rate: float) -> float:
        """One update from the gradients that lie in the module, which are dropped; their norm before clipping."""
        for name, weight in self._weights.items():
            gradient = weight.grad
            self.masters[name].grad = None if gradient is None else gradient.float()
            weight.grad = None
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), self._clip))
        if norm == norm and norm != float("inf"):  # a batch that overflowed teaches nothing
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
        for master in self.masters.values():
            master.grad = None
        self._write_back()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        tensors = {f"master.{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            held = self._adam.state.get(master, {})
            tensors |= {f"{moment}.{name}": held[moment] for moment in _MOMENTS if moment in held}
            if "step" in held:
                tensors[f"step.{name}"] = held["step"]
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes up what `state` gave; raises CheckpointError if that was of another drafter."""
        for name, master in self.masters.items():
            saved = tensors.get(f"master.{name}")
            if saved is None or saved.shape != master.shape:
                raise CheckpointError(
                    f"The training state does not fit the drafter: {name} is missing or of another shape.",
                    hint="Give the run another output folder, or the configuration that it was begun with.",
                )
            master.copy_(saved)
            if f"exp_avg.{name}" in tensors:
                self._adam.state[master] = {
                    "step": tensors[f"step.{name}"].clone(),
                    **{moment: tensors[f"{moment}.{name}"].to(master.device).clone() for moment in _MOMENTS},
                }
        self._write_back()

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self.masters[name])


T = TypeVar("T")


class Processes:
    """The processes of a run, of which this is one; `accelerator` is accelerate's."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.share = RowShare(accelerator.process_index, accelerator.num_processes)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Of all processes, the same for each."""
        mean: torch.Tensor = self._accelerator.reduce(values, "mean")
        return mean

    def from_main(self, read: Callable[[], T]) -> T:
        """What the main process reads: the others' machines need not have it."""
        found = [read() if self._accelerator.is_main_process else None]
        return broadcast_object_list(found)[0]  # type: ignore[no-any-return]

    def require_same(self, identity: str) -> None:
        """Raises MismatchError, in each process, where one of them was started with other settings or data."""
        others = [process for process, theirs in enumerate(gather_object([identity])) if theirs != identity]
        if others:
            raise MismatchError(
                f"Process {self.share.process} has other settings, shards or target than process {others[0]}.",
                hint="Give every machine the same configuration, shards and model.",
            )

    def leave(self) -> None:
        """Ends the process group, after the last word to the others.

        What uses the group must be gone: where a model wrapped for it holds the last reference, torch 2.13 joins gloo's
        thread with the interpreter's lock held, and waits for ever if that thread still has a tensor to give back.
        """
        if self.share.processes > 1:
            self._accelerator.free_memory()
            self._accelerator.end_training()
