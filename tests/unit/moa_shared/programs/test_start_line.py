from __future__ import annotations

import io

import pytest
from moa_shared.programs.start_line import StartLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_replaced_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    line = StartLine(terminal)
    line.clear()
    assert terminal.getvalue() == ""
    line.show("Starting ...")
    line.show("Loading ...")
    assert terminal.getvalue() == "\rStarting ...\x1b[K\r\rLoading ...\x1b[K\r"
    line.clear()
    line.clear()
    assert terminal.getvalue().endswith("Loading ...\x1b[K\r\r\x1b[K")


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_clear_a_line_is_left_alone(monkeypatch: pytest.MonkeyPatch, term: str | None) -> None:
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    terminal = Terminal()
    StartLine(terminal).show("Starting ...")
    assert terminal.getvalue() == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    pipe = io.StringIO()
    StartLine(pipe).show("Starting ...")
    assert pipe.getvalue() == ""
