"""CUDA graphs: what launches many small kernels is recorded once and played again, which launches them together.

State: the memory that all graphs of one recorder share, since they are played one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class CudaGraphs:
    """Records graphs."""

    def __init__(self) -> None:
        self._memory: Any = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Runs a function once and records it; gives what plays it again, and the tensors that it then writes."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # what is compiled or allocated at the first call must not be recorded
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            written = run()
        return graph.replay, written
