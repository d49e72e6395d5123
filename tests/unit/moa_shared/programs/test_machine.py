"""Free memory and processes; files that are whole or not at all; how progress is told."""

import errno
import gc
import io
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from moa_shared.programs.atomic import create_private, open_to_others, whole_file, write_private
from moa_shared.programs.machine import FreeMemory, collector_paused, free_memory, life_of
from moa_shared.programs.progress import PlainProgress, Progress, TerminalProgress, make_progress

NONE = Path("/nonexistent")


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    return path


def group(folder: Path, limit: str, used: int, stat: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_what_the_machine_says_is_free(meminfo: Path) -> None:
    assert free_memory(meminfo, NONE, NONE) == FreeMemory(600 * 1024)
    assert free_memory().nbytes > 0


@pytest.mark.parametrize(("limit", "free"), [("max", 600 * 1024), ("5000", 2000), ("2000", 0)])
def test_a_container_s_limit_counts(meminfo: Path, tmp_path: Path, limit: str, free: int) -> None:
    group(tmp_path, limit, 3000)
    assert free_memory(meminfo, tmp_path, NONE) == FreeMemory(free, None if limit == "max" else int(limit))


def test_pages_of_files_can_be_had(meminfo: Path, tmp_path: Path) -> None:
    group(tmp_path, "5000", 4000, stat="anon 1000\ninactive_file 1000\nactive_file 500\n")
    assert free_memory(meminfo, tmp_path, NONE) == FreeMemory(2500, 5000)


def test_the_limits_of_a_service_and_of_what_it_is_in_count(meminfo: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/moa.service\n")
    group(tmp_path / "system.slice", "9000", 1000)
    group(tmp_path / "system.slice/moa.service", "max", 500)
    assert free_memory(meminfo, tmp_path, own) == FreeMemory(8000, 9000)
    group(tmp_path / "system.slice/moa.service", "3000", 500)
    assert free_memory(meminfo, tmp_path, own) == FreeMemory(2500, 3000)


def test_what_a_process_does() -> None:
    mine = life_of(os.getpid())
    assert mine is not None
    assert not mine.is_idle
    assert 0 < mine.seconds <= os.times().user + os.times().system + 1
    with subprocess.Popen(["sleep", "600"]) as other:
        other.send_signal(signal.SIGSTOP)
        while (life := life_of(other.pid)) is None or not life.is_idle:
            os.sched_yield()
        other.kill()
    assert life_of(other.pid) is None


@collector_paused()
def fail() -> None:
    assert not gc.isenabled()
    raise ValueError


def test_the_collector_runs_again_after_an_error_and_after_the_outermost_pause() -> None:
    with pytest.raises(ValueError):
        fail()
    assert gc.isenabled()
    with collector_paused():
        with pytest.raises(ValueError):
            fail()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("several_writers", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_written_whole(tmp_path: Path, several_writers: bool, durable: bool) -> None:
    path = tmp_path / "new" / "file"
    with whole_file(path, several_writers=several_writers, durable=durable) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o444 == 0o444  # others may read it
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("several_writers", [False, True])
def test_a_writer_that_fails_changes_nothing(tmp_path: Path, several_writers: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half(error: BaseException) -> None:
        with whole_file(path, several_writers=several_writers) as partial:
            partial.write_text("half")
            raise error

    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(type(error)):
            write_half(error)
    assert (path.read_text(), [entry.name for entry in tmp_path.iterdir()]) == ("old", ["file"])


def test_several_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_file(path, several_writers=True) as first:
        first.write_text("first")
        with whole_file(path, several_writers=True) as second:
            second.write_text("second")
    assert path.read_text() == "first"


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.with_name("file.partial").write_text("of a killed one, and longer")
    with whole_file(path) as partial:
        partial.write_text("new")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "new")]


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.with_name("file.partial").write_text("of a killed writer, which everybody may read")
    write_private(path, b"new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileExistsError):
        create_private(path, b"other")


US, ROOT = 1000, 0


def file_of(owner: int, mode: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, US, 0, 0, 0, 0))


@pytest.mark.parametrize(("owner", "before", "mode"), [(US, 0o600, 0o600), (US, 0o644, 0o600), (ROOT, 0o640, 0o640)])
def test_what_root_replaces_stays_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, before: int, mode: int
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    create_private(tmp_path / "file", b"new", file_of(owner, before))
    assert (given, stat.S_IMODE((tmp_path / "file").stat().st_mode)) == ([(owner, US)], mode)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    write_private(tmp_path / "file", b"newer")
    assert given[1:] == [(os.getuid(), os.getgid())]


@pytest.mark.parametrize(("owner", "closed", "opened"), [
    (US, (0o600, 0o400), (0o640, 0o604)),
    (ROOT, (0o440, 0o640), (0o660, 0o644)),  # a Secret of Kubernetes, of which the server's group is told
])  # fmt: skip
def test_who_may_use_a_file(
    monkeypatch: pytest.MonkeyPatch, owner: int, closed: tuple[int, ...], opened: tuple[int, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: US)
    assert not any(open_to_others(file_of(owner, mode)) for mode in closed)
    assert all(open_to_others(file_of(owner, mode)) for mode in opened)


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
    for nobody in (make_progress(stream), PlainProgress(stream), Progress()):
        assert not nobody.allows("Fetch it?")
    assert stream.getvalue() == "Fetch [it]? [y/N] "
