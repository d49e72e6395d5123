"""Log-probabilities of chosen tokens, and of the likeliest beside them, from rows of logits. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moa_shared.sampling.chances import TokenChances, WantedChances
from moa_shared.sampling.coupling import permitted, process_logits
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.scores import Scores, largest, log_softmax
from moa_shared.sampling.settings import Sampling


def chances_of(
    logits: Scores,
    chosen: Sequence[int],
    positions: Sequence[int],
    wanted: WantedChances,
    sampling: Sampling,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> tuple[TokenChances, ...]:
    """The chances of the token chosen from each row; what cannot follow at all is not among the likeliest.

    Args:
        logits: [rows, vocab] float32, the target's.
        chosen: of each row, the token.
        positions: of each token; `before` and `allowed` as `coupling.select` takes them.
    """
    if wanted.processed:
        scores = process_logits(permitted(logits, positions, sampling, before, allowed), sampling)
    else:
        scores = log_softmax(logits)
    own = scores[np.arange(len(chosen)), list(chosen)].tolist()
    if not wanted.likeliest:
        return tuple(TokenChances(each) for each in own)
    values, tokens = largest(scores, min(wanted.likeliest, scores.shape[-1]))
    possible = np.isfinite(values).sum(-1).tolist()  # the likeliest come first
    return tuple(
        TokenChances(each, tuple(of[:count]), tuple(theirs[:count]))
        for each, of, theirs, count in zip(own, tokens.tolist(), values.tolist(), possible, strict=True)
    )
