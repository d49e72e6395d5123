"""Which tokens may follow in an answer that must have a form. Importing this needs no library that compiles forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.models.tokenizer import Tokenizer


def constraint_compiler(
    tokenizer: Tokenizer, size: int, end_of_text: Iterable[int], *, tries: bool = True
) -> ConstraintCompiler | None:
    """Compiles the forms of answers, as `ConstraintCompiler`; None where the library for that is not installed."""
    try:
        from moa_shared.constraints.compiler import ConstraintCompiler
    except ModuleNotFoundError:
        return None
    return ConstraintCompiler(tokenizer, size, end_of_text, tries=tries)
