"""Rotary angles of positions, with the scalings of Llama and Qwen models (transformers' `rope_parameters`).

Sources: RoFormer (arXiv 2104.09864), linear interpolation (arXiv 2306.15595), YaRN (arXiv 2309.00071), Llama 3.1.
State: a table that grows. Invariant: frequencies and products are rounded to float32, as transformers rounds them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import KernelError

Table = npt.NDArray[np.float32]
MOST_FACTOR = 100.0  # of cosines and sines; published models have 0.7 to 1.7
PROPORTIONAL = "proportional"  # a part of a head's pairs turns, and each pair is half a head apart


class Rotary:
    """Cosines and sines for heads of `head_dim` numbers.

    `parameters`: `rope_type` (default, linear, llama3, yarn, longrope, proportional), `rope_theta`, and what the type
    needs; `partial_rotary_factor` where only a part of a head is rotated. `max_positions`: of the model (yarn,
    longrope); `context`: the most positions of texts, by which longrope's factors are chosen once; 0: the model's.
    """

    def __init__(
        self, head_dim: int, parameters: Mapping[str, Any], max_positions: int = 8192, context: int = 0
    ) -> None:
        try:
            share = float(parameters.get("partial_rotary_factor") or 1.0)
            self.rotated = head_dim if _kind(parameters) == PROPORTIONAL else int(head_dim * share)
            if not 0 < self.rotated <= head_dim or self.rotated % 2:
                raise ValueError(f"{self.rotated} of {head_dim} numbers of a head are rotated")
            with np.errstate(all="ignore"):
                found = _frequencies(self.rotated, parameters, max_positions, context or max_positions)
                self._frequencies, self._factor = found
            self._query_slope = float(parameters.get("llama_4_scaling_beta") or 0.0)
            self._query_period = float(parameters["original_max_position_embeddings"]) if self._query_slope else 1.0
            if not (0 <= self._query_slope < math.inf and 0 < self._query_period < math.inf):
                raise ValueError("the scaling of its queries is no number above 0")
            if not (np.isfinite(self._frequencies).all() and 0 < self._factor <= MOST_FACTOR):
                raise ValueError(f"its angles are not finite, or scaled by {self._factor}")
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise KernelError(f"The rotary parameters {dict(parameters)} cannot be used ({error!r}).") from None
        self.head_dim = head_dim
        none = np.empty((0, self.rotated // 2), np.float32)
        self._tables: tuple[Table, Table] = none, none  # one tuple: threads share it

    def tables(self, positions: int) -> tuple[Table, Table]:
        """Cosines and sines of at least the positions 0 to `positions` - 1, [positions, rotated / 2] float32 each."""
        tables = self._tables
        if positions > len(tables[0]):
            count = max(1024, 2 * positions)
            # In float64, so that every machine's library rounds to the same float32.
            angles = (np.arange(count, dtype=np.float32)[:, None] * self._frequencies).astype(np.float64)
            cosines, sines = ((turn(angles) * self._factor).astype(np.float32) for turn in (np.cos, np.sin))
            self._tables = tables = cosines, sines
        return tables

    def query_factors(self, positions: npt.NDArray[np.int32]) -> Table | None:
        """What queries at these positions are multiplied by besides (Ministral 3); None: nothing."""
        if not self._query_slope:
            return None
        periods = np.floor(positions.astype(np.float64) / self._query_period)
        factors: Table = (1 + self._query_slope * np.log(1 + periods)).astype(np.float32)
        return factors

    def rotate(self, rows: Table, positions: npt.NDArray[np.int32]) -> Table:
        """Rotates [rows, heads, head_dim] by each row's position; pairs are (i, i + rotated / 2)."""
        cosines, sines = (table[positions][:, None] for table in self.tables(int(positions.max(initial=0)) + 1))
        return rotated(rows, cosines, sines)


def rotated(rows: Table, cosines: Table, sines: Table) -> Table:
    """[rows, heads, head_dim] turned by angles [rows, 1, rotated / 2]; pairs are (i, i + rotated / 2)."""
    half = cosines.shape[-1]
    first, second, rest = np.split(rows, [half, 2 * half], axis=-1)
    turned: Table = np.concatenate((first * cosines - second * sines, second * cosines + first * sines, rest), axis=-1)
    return turned


def _frequencies(head_dim: int, parameters: Mapping[str, Any], max_positions: int, context: int) -> tuple[Table, float]:
    """Angle a position of each pair, float32, and what cosines and sines are multiplied by."""
    kind, theta = _kind(parameters), float(parameters["rope_theta"])
    plain = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind == "default":
        return plain.astype(np.float32), 1.0
    if kind == "longrope":
        return _longrope(plain, parameters, max_positions, context)
    if kind == PROPORTIONAL:
        return _proportional(plain, parameters), 1.0
    factor = float(parameters["factor"])
    if kind == "linear":
        return (plain / factor).astype(np.float32), 1.0
    if kind == "llama3":
        return _llama3(plain, factor, parameters).astype(np.float32), 1.0
    if kind == "yarn":
        return _yarn(plain, factor, head_dim, parameters, max_positions)
    raise KernelError(f"Rotary scaling of the type {kind!r} is not computed by the kernels.")


def _kind(parameters: Mapping[str, Any]) -> object:
    return parameters.get("rope_type", parameters.get("type", "default"))


def _proportional(plain: npt.NDArray[np.float64], parameters: Mapping[str, Any]) -> Table:
    """The first pairs turn as in a whole head; the others, of which each is as far apart, stay (Gemma 4)."""
    share = float(parameters.get("partial_rotary_factor") or 1.0)
    turning = int(share * len(plain))
    if not 0 <= turning <= len(plain):
        raise ValueError(f"{turning} of {len(plain)} pairs of numbers of a head are rotated")
    found = plain / float(parameters.get("factor") or 1.0)
    found[turning:] = 0
    return found.astype(np.float32)


def _llama3(plain: npt.NDArray[np.float64], factor: float, parameters: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    return np.where(
        wavelengths < original / high, plain, np.where(wavelengths > original / low, plain / factor, between)
    )


def _longrope(
    plain: npt.NDArray[np.float64], parameters: Mapping[str, Any], max_positions: int, context: int
) -> tuple[Table, float]:
    """The long factors for a context beyond the original one, else the short ones: chosen once, not by each text."""
    original = float(parameters["original_max_position_embeddings"])
    factors = np.asarray(parameters["long_factor" if context > original else "short_factor"], np.float64)
    if factors.shape != plain.shape:
        raise ValueError(f"{factors.size} factors for {plain.size} pairs of numbers")
    scale = float(parameters.get("factor") or max_positions / original)
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
    return (plain / factors).astype(np.float32), float(attention)


def _yarn(
    plain: npt.NDArray[np.float64], factor: float, head_dim: int, parameters: Mapping[str, Any], max_positions: int
) -> tuple[Table, float]:
    theta = float(parameters["rope_theta"])

    def scale_of(factor: float, mscale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    attention = parameters.get("attention_factor")
    if attention is None:
        mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        attention = scale_of(factor)
        if mscale and mscale_all:
            attention = scale_of(factor, float(mscale)) / scale_of(factor, float(mscale_all))
    original = float(parameters.get("original_max_position_embeddings") or max_positions)

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(float(parameters.get("beta_fast") or 32)), dimension(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / ((high - low) or 0.001), 0, 1)
    return (plain / factor * ramp + plain * (1 - ramp)).astype(np.float32), float(attention)
