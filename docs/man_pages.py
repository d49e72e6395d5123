"""Writes a manual page of each program and command into FOLDER/man1, from the same source as --help.

python docs/man_pages.py build/man && MANPATH=build/man man moa-client-chat
"""

import inspect
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import moa_bench.cli
import moa_client.cli
import moa_server.cli
import moa_training.cli
import netsim.cli
from moa_shared.errors import CATALOGUE
from moa_shared.programs.command_line import loaded

PROGRAMS: dict[str, click.Command] = {
    "moa-client": moa_client.cli.cli,
    "moa-server": moa_server.cli.cli,
    "moa-train": moa_training.cli.cli,
    "moa-bench": moa_bench.cli.cli,
    "netsim": netsim.cli.main,
}
LONGEST = 999  # nothing is cut or wrapped here
DEFAULT = re.compile(r"  \[(.+)\]$")  # at the end of an option's help


def write_pages(folder: Path) -> list[Path]:
    """Writes all pages; returns their files."""
    section = folder / "man1"
    section.mkdir(parents=True, exist_ok=True)
    written = []
    for program, command in PROGRAMS.items():
        for name, text in pages(_context(command, program)):
            written.append(section / f"{name}.1")
            written[-1].write_text(text, "utf-8")
    return written


def pages(context: click.Context) -> Iterator[tuple[str, str]]:
    """The name and text of the page of a command, and of those below it."""
    below = [*_below(context)]
    yield _name(context), _page(context, below)
    for inner in below:
        yield from pages(inner)


def _below(context: click.Context) -> Iterator[click.Context]:
    command = context.command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        _, found, _ = command.resolve_command(context, [name])
        if found is not None and not found.hidden:
            yield _context(loaded(found), name, context)


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(
        command, parent=parent, info_name=name, **{**command.context_settings, "max_content_width": LONGEST}
    )


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, below: list[click.Context]) -> str:
    command = context.command
    about = inspect.cleandoc(command.help or "").replace("\f", "")
    brief = command.get_short_help_str(LONGEST).rstrip(".")
    name = _name(context)
    usage = " ".join(command.collect_usage_pieces(context))
    package = f"moa {version('moa-split')}"
    lines = [
        f'.TH "{_plain(name.upper())}" 1 "" "{package}" "{_plain(context.find_root().info_name or "")}"',
        ".nh",
        ".SH NAME",
        f"{_plain(name)} \\- {_plain(brief)}",
        ".SH SYNOPSIS",
        f".B {_plain(context.command_path)}",
        _plain(usage),
        ".SH DESCRIPTION",
        *_paragraphs(about),
    ]
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    options = [line for record in records if record is not None and record[1] for line in _option(*record)]
    if options:
        lines += [".SH OPTIONS", *options]
    if below:
        lines.append(".SH COMMANDS")
        for inner in below:
            short = inner.command.get_short_help_str(LONGEST)
            lines += [".TP", f"\\fB{_plain(inner.info_name or '')}\\fR", _plain(short)]
    if context.find_root().info_name != "netsim":
        lines += [".SH EXIT STATUS", *_exit_codes()]
    others = [*([context.parent] if context.parent else []), *below]
    if others:
        *first, last = [f".BR {_plain(_name(other))} (1)" for other in others]
        lines += [".SH SEE ALSO", *(f"{line.removesuffix('(1)')}(1)," for line in first), last]
    return "\n".join(lines) + "\n"


def _option(declaration: str, text: str) -> list[str]:
    words = re.sub(r"(--?[A-Za-z][\w-]*)", lambda flag: f"\0B{flag[0]}\0R", declaration)
    shown = _plain(words).replace("\0B", "\\fB").replace("\0R", "\\fR")
    more = DEFAULT.search(text)
    lines = [".TP", shown, _plain(DEFAULT.sub("", text)) or "\\&"]
    return [*lines, ".br", _plain(f"[{more[1]}]")] if more else lines


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):  # not to be wrapped
            yield from (".nf", *map(_plain, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _plain(" ".join(paragraph.split()))


def _exit_codes() -> Iterator[str]:
    reasons: dict[int, list[str]] = {0: ["Done."]}
    for error in CATALOGUE.values():
        reasons.setdefault(error.exit_code, []).append((error.__doc__ or "").strip().partition("\n")[0])
    for code, texts in sorted(reasons.items()):
        yield from (".TP", f"\\fB{code}\\fR", _plain(" ".join(dict.fromkeys(texts))))


def _plain(text: str) -> str:
    """Text that troff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    print("\n".join(map(str, write_pages(Path(sys.argv[1] if len(sys.argv) > 1 else "build/man")))))
