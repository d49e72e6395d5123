"""The processes of a training run, on one machine or several: what they share, and what they must have in common.

State: `accelerate`'s process group. Invariant: all processes call the methods that talk to the others in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast, broadcast_object_list, gather_object
from moa_shared.errors import MismatchError

from moa_training.data.batches import RowShare

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

    def of_main(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The main process's values of tensors that each has: another machine may round otherwise."""
        return {name: broadcast(tensor) for name, tensor in tensors.items()}

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
