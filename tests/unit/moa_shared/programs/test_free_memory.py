from __future__ import annotations

from pathlib import Path

from moa_shared.programs.free_memory import free_memory_bytes


def test_what_the_machine_says_is_free(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) == 600 * 1024


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable:    600 kB\n")
    for limit, free in (("max\n", 600 * 1024), ("5000\n", 2000), ("2000\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("3000\n")
        assert free_memory_bytes(meminfo, tmp_path) == free


def test_where_nothing_is_said_it_is_half_of_what_there_is(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path / "none", tmp_path) > 0
