"""A mixture of experts in place of a layer's MLP: a router chooses a few of many for each row.

State: weights only. Invariant: a row's experts, their weights and the order in which they are added depend on the row
alone; equal scores go by the experts' numbers.
"""

import ctypes as ct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import CExperts, CLinear, address
from moa_kernels.blocks import Rows
from moa_kernels.formats import KernelError
from moa_kernels.linear import Linear, vector

MOST_EXPERTS = 1024  # of a layer, as in kernels.h; the models of 2026 have up to 512
ReadExpert = Callable[[int], tuple[Linear, Linear]]


class Experts:
    """The experts of one layer.

    Args:
        router: gives each expert's score; in float32.
        chosen: how many a row has.
        read: gives the products of an expert by its number: gate and up, and down. In numpy each is read when a row
            has chosen it, and not kept.
        weighs_all: weights are parts of a softmax over all scores, whose sum is below 1; else over those of the chosen.
        scales: [experts], what the experts' weights are multiplied by; None: nothing.
    """

    def __init__(
        self, router: Linear, chosen: int, read: ReadExpert, *, weighs_all: bool = False, scales: Rows | None = None
    ) -> None:
        self.count, self.chosen, self.weighs_all = router.outputs, chosen, weighs_all
        if self.count > MOST_EXPERTS or not 0 < chosen <= self.count:
            raise KernelError(
                f"A row cannot have {chosen} of {self.count} experts, of which the kernels take at most {MOST_EXPERTS}."
            )
        if router.compiled and not router.plain:
            raise KernelError("The router of experts is not in float32.")
        if scales is not None and scales.shape != (self.count,):
            raise KernelError(f"The scales of {self.count} experts have the shape {scales.shape}.")
        self.router, self.compiled = router, router.compiled
        self.scales = None if scales is None else vector(scales)
        self._read = read
        gate_up, down = self._read(0)
        self.hidden, self.inner = router.inputs, down.inputs
        self._check(0, gate_up, down)
        if not self.compiled:
            return
        self._pairs = [(gate_up, down), *(read(number) for number in range(1, self.count))]
        for number, pair in enumerate(self._pairs):
            self._check(number, *pair)
            if list(map(_form, pair)) != [_form(gate_up), _form(down)]:
                raise KernelError(f"Expert {number} is not of the form of expert 0: one has a bias or is in float32.")
        self._c_gate_up = (CLinear * self.count)(*(gate_up.c for gate_up, _ in self._pairs))
        self._c_down = (CLinear * self.count)(*(down.c for _, down in self._pairs))
        self.c = CExperts(
            self.count, chosen, self.inner, int(weighs_all), address(self.scales), router.c,
            ct.cast(self._c_gate_up, ct.POINTER(CLinear)), ct.cast(self._c_down, ct.POINTER(CLinear)),
        )  # fmt: skip

    def pair(self, number: int) -> tuple[Linear, Linear]:
        """The products of one expert."""
        return self._pairs[number] if self.compiled else self._read(number)

    def choose(self, scores: Rows) -> tuple[npt.NDArray[np.int64], Rows]:
        """Each row's experts, best first, and their weights: [rows, chosen] each; in numpy.

        `scores`: by the router, [rows, experts].
        """
        numbers = np.argsort(-scores, axis=-1, kind="stable")[:, : self.chosen]
        best = np.take_along_axis(scores, numbers, axis=-1)
        powers = np.exp((scores if self.weighs_all else best) - best[:, :1])
        weights = np.exp(best - best[:, :1]) / powers.sum(axis=-1, keepdims=True)
        return numbers, weights if self.scales is None else weights * self.scales[numbers]

    def _check(self, number: int, gate_up: Linear, down: Linear) -> None:
        if any(linear.compiled != self.compiled for linear in (gate_up, down)):
            raise KernelError(f"Expert {number} and its router are not both compiled, or both computed in numpy.")
        got = (gate_up.outputs, gate_up.inputs, down.outputs, down.inputs)
        if got != (2 * self.inner, self.hidden, self.hidden, self.inner):
            raise KernelError(
                f"Expert {number} has the shapes [{got[0]}, {got[1]}] and [{got[2]}, {got[3]}],"
                f" expected [{2 * self.inner}, {self.hidden}] and [{self.hidden}, {self.inner}]."
            )


def _form(linear: Linear) -> tuple[bool, bool]:
    return linear.plain, linear.has_bias
