"""Facts about machine and commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from moa_bench.report.facts import commit_of, cpu_model, gather_facts
from moa_kernels.variants import VARIANTS


def test_the_processor_is_read_from_proc(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nprocessor\t: 1\nmodel name\t: Other\n")
    assert cpu_model(cpuinfo) == "Some CPU @ 2.0GHz"
    assert cpu_model(tmp_path / "none")


def test_a_changed_checkout_is_marked(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    assert commit_of(tmp_path) is None
    assert commit_of(None) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    clean = commit_of(tmp_path)
    assert clean is not None
    assert len(clean) >= 7
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (results / "micro.json").write_text("1")
    git("add", "bench")
    (tmp_path / "README.md").write_text("1")
    git("add", "README.md")
    git("commit", "-qm", "two")
    assert commit_of(tmp_path) == clean  # neither another suite's result nor a text changes what is measured
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == clean + "+"


def test_all_facts_are_there() -> None:
    facts = gather_facts(None)
    assert facts["cores"] >= facts["cores_allowed"] >= 1
    assert facts["packages"]["numpy"]
    assert facts["kernels"] in {*(each.instructions for each in VARIANTS), "no compiled kernels"}
    assert facts["commit"] is None
