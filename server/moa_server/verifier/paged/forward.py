"""The decoder layers over the rows of a batch: at once, or as a recorded graph that is played again.

State: the graphs, by the number of rows. Invariant: a graph reads the batch from tensors that stay where they are, so
that playing it gives what running the layers gives.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from moa_server.verifier.paged.attention import Attention, AttentionPlan, Step
from moa_server.verifier.paged.pool import PAGE_ROWS, Batch


class DeviceTensors:
    """Tensors by name. `fixed`: a tensor stays where it first was, with its shape: what a recorded graph reads."""

    def __init__(self, device: torch.device, *, fixed: bool) -> None:
        self._device, self._fixed = device, fixed
        self._held: dict[str, torch.Tensor] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the device; until the name is given again."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self._fixed and name in self._held:
            return self._held[name].copy_(source)
        self._held[name] = source.to(self._device, copy=self._fixed)
        return self._held[name]


MOST_GRAPH_ROWS = 256  # beyond that the layers take longer than starting their kernels does
Run = Callable[[], "States"]
Record = Callable[[Run], tuple[Callable[[], None], "States"]]


class States(NamedTuple):
    """What a forward gives: the state that leaves the last layer, [rows, hidden_size], and those that enter others."""

    last: torch.Tensor
    entering: dict[int, torch.Tensor]


class Layers(NamedTuple):
    """The parts of a model that a forward runs; transformers' modules.

    `scale`: of what enters the first layer, where `embed` does not scale it. `kinds`: of each layer, by which `rotary`
    has its angles; empty: all have the same.
    """

    embed: nn.Module
    rotary: nn.Module
    decoder: list[nn.Module]
    scale: float = 1.0
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inputs:
    tensors: DeviceTensors
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: Inputs
    play: Callable[[], None]
    states: States


class Forward:
    """Runs the layers.

    `context_length`: the most rows of one conversation. `record`: runs a function once and records it; gives what plays
    it again, and the tensors that it then writes. None: nothing is recorded.
    """

    def __init__(self, layers: Layers, attention: Attention, context_length: int, record: Record | None = None) -> None:
        self._layers, self._attention, self._record = layers, attention, record
        self._most_pages = -(-context_length // PAGE_ROWS)
        self._direct = self._new_inputs()
        self._graphs: dict[int, Graph] = {}

    def run(self, batch: Batch, wanted: Iterable[int]) -> States:
        """The states of a batch's rows; those of a graph are overwritten by the next forward.

        `wanted`: the layers whose entering state is given; as many as there are layers: what leaves the last.
        """
        if self._record is None or batch.rows > MOST_GRAPH_ROWS:
            return self._prepare(self._direct, batch, frozenset(wanted))()
        graph = self._graphs.get(batch.rows)
        if graph is None:
            # With the states of all layers, which are few rows: else whoever first wants others waits for a recording.
            every = frozenset(range(len(self._layers.decoder) + 1))
            inputs = self._new_inputs(batch.rows)
            play, states = self._record(self._prepare(inputs, batch, every))
            graph = self._graphs[batch.rows] = Graph(inputs, play, states)
        else:
            self._prepare(graph.inputs, batch, frozenset())
        graph.play()
        return States(graph.states.last, {layer: graph.states.entering[layer] for layer in wanted})

    def _new_inputs(self, rows: int = 0) -> Inputs:
        device = self._attention.pool.tensor.device
        plan = self._attention.new_plan(rows, self._most_pages)
        return Inputs(DeviceTensors(device, fixed=rows > 0), plan)

    def _prepare(self, inputs: Inputs, batch: Batch, wanted: frozenset[int]) -> Run:
        """Puts the batch where the layers read it; gives the function that runs them."""
        put = inputs.tensors.put
        tokens, positions = put("tokens", batch.tokens), put("positions", batch.positions)
        step = Step(self._attention.pool, put("slots", batch.slots), inputs.plan)
        inputs.plan.load(batch)
        return lambda: self._run_layers(tokens, positions, step, wanted)

    def _run_layers(self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, wanted: frozenset[int]) -> States:
        hidden: torch.Tensor = self._layers.embed(tokens[None])  # [1, rows, hidden_size]
        if self._layers.scale != 1:
            hidden = hidden * self._layers.scale
        rotary, kinds = self._layers.rotary, self._layers.kinds
        angles = {kind: rotary(hidden, positions[None], kind) for kind in dict.fromkeys(kinds)}
        same = None if kinds else rotary(hidden, positions[None])
        entering = {}
        for index, layer in enumerate(self._layers.decoder):
            if index in wanted:
                entering[index] = hidden[0]
            own = angles[kinds[index]] if kinds else same
            hidden = layer(hidden, position_embeddings=own, past_key_values=step, step=step)
        if len(self._layers.decoder) in wanted:
            entering[len(self._layers.decoder)] = hidden[0]
        return States(hidden[0], entering)
