import io
import re

import pytest
from moa_shared.programs.progress import PlainProgress, SilentProgress, TerminalProgress, make_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_tell_the_quarters() -> None:
    stream = io.StringIO()
    progress = make_progress(stream)
    with progress.task("Loading", 200) as task:
        for _ in range(20):
            task.advance(10)
    progress.note("ready")
    lines = stream.getvalue().splitlines()
    assert lines[:-2] == ["Loading ...", "Loading: 25 %", "Loading: 50 %", "Loading: 75 %"]
    assert re.fullmatch(r"Loading: done in \d+\.\d s", lines[-2])
    assert lines[-1] == "ready"


def test_a_failed_task_does_not_say_done() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), PlainProgress(stream).task("Loading", 4):
        raise KeyError
    assert "done" not in stream.getvalue()


@pytest.mark.parametrize("is_bytes", [False, True])
def test_a_terminal_gets_a_bar(is_bytes: bool) -> None:
    stream = Terminal()
    progress = make_progress(stream)
    assert isinstance(progress, TerminalProgress)
    with progress.task("Loading [x]", 2_000_000, is_bytes=is_bytes) as task:
        task.advance(1_000_000)
        task.reach(2_000_000)
    progress.note("[ready]")
    shown = stream.getvalue()
    assert "Loading" in shown
    assert "[ready]" in shown
    assert ("2.0/2.0 MB" if is_bytes else "100%") in shown


@pytest.mark.parametrize("answer", ["y", "Yes", "n", ""])
def test_only_a_terminal_s_user_is_asked(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, answers = Terminal(), Terminal(f"{answer}\n")
    monkeypatch.setattr("sys.stdin", answers)
    assert make_progress(stream).allows("Fetch [it]?") == (answer in ("y", "Yes"))
    assert stream.getvalue() == "Fetch [it]? [y/N] "
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    for nobody in (make_progress(stream), PlainProgress(stream), SilentProgress()):
        assert not nobody.allows("Fetch it?")
    assert stream.getvalue() == "Fetch [it]? [y/N] "
