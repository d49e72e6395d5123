"""Errors that can be planted in the source of a function: a comparison, a sign, a number, a condition that is another."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.FloorDiv: ("//", "*"),
}


@dataclass(frozen=True, slots=True)
class PlantedError:
    """One error.

    Args:
        file: below the checkout.
        function: its qualified name.
        before, after: a line of the function, without its indentation; the first that reads so.
        caught_by: the test that fails with it; empty: none does.
    """

    file: str
    function: str
    before: str
    after: str
    caught_by: str = ""

    def plant(self, root: Path) -> str:
        """The file's source with the error. LookupError: the function has no such line any more."""
        lines = (root / self.file).read_text("utf-8").split("\n")
        for name, node in functions(ast.parse("\n".join(lines))):
            if name == self.function:
                for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                    if lines[at].strip() == self.before:
                        lines[at] = lines[at].replace(self.before, self.after)
                        return "\n".join(lines)
        raise LookupError(f"{self.file}, {self.function}: no line reads {self.before!r}")


def module_name(file: str) -> str:
    """The name under which a file below a source root is imported."""
    return ".".join(Path(file).with_suffix("").parts[1:])


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions and methods with their qualified names."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")

    return walk(tree, "")


def possible(root: Path, file: str) -> Iterator[PlantedError]:
    """Every error that can be planted in a file, one a place."""
    text = (root / file).read_text("utf-8")
    lines = text.split("\n")
    for name, function in functions(ast.parse(text)):
        for node in (each for statement in function.body for each in ast.walk(statement)):
            for line, start, end, new in _changes(node, lines):
                whole = lines[line - 1]
                before, after = whole.strip(), (whole[:start] + new + whole[end:]).strip()
                yield PlantedError(file, name, before, after)


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    """Line, first and last column, and what is there instead."""
    if isinstance(node, ast.Compare):
        yield from _operator(node.left, node.comparators[0], node.ops[0], lines)
    elif isinstance(node, ast.BoolOp):
        yield from _operator(node.values[0], node.values[1], node.op, lines)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.right, node.op, lines)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and node.operand.lineno == node.lineno:
        yield node.lineno, node.col_offset, node.operand.col_offset, ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node.lineno, node.col_offset, node.end_col_offset or 0, str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node.lineno, node.col_offset, node.end_col_offset or 0, str(node.value + 1)


def _operator(
    left: ast.expr, right: ast.expr, operator: ast.AST, lines: list[str]
) -> Iterator[tuple[int, int, int, str]]:
    """What stands between two operands of one line, if it is the operator alone."""
    before, after = _OPERATORS.get(type(operator), ("", ""))
    start, end = left.end_col_offset or 0, right.col_offset
    if before and left.end_lineno == right.lineno and lines[right.lineno - 1][start:end].strip() == before:
        yield right.lineno, start, end, f" {after} "
