"""What compiles forms of answers, where the library for that is installed: importing this needs none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moa_shared.models.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler


def constraint_compiler(
    tokenizer: Tokenizer, size: int, end_of_text: Iterable[int], *, tries: bool = True
) -> ConstraintCompiler | None:
    """Compiles the forms of answers; None where the library for that is not installed.

    Args:
        size, end_of_text, tries: as of `ConstraintCompiler`.
    """
    try:
        from moa_shared.constraints.compiler import ConstraintCompiler
    except ModuleNotFoundError:
        return None
    return ConstraintCompiler(tokenizer, size, end_of_text, tries=tries)
