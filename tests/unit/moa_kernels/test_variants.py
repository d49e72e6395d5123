import re
from pathlib import Path

from moa_kernels.variants import SOURCES, VARIANTS, source_hash


def test_bits_are_those_of_the_probe() -> None:
    enum = re.search(r"enum \{ (AVX2 = .*) \};", (SOURCES / "probe.c").read_text())
    assert enum is not None
    in_c = {name.lower(): int(bit) for name, bit in re.findall(r"(\w+) = (\d+)", enum[1])}
    assert in_c == {variant.name: variant.bit for variant in VARIANTS}


def test_hash_follows_names_and_contents_of_sources(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    first = source_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert source_hash(tmp_path) == first
    (tmp_path / "b.h").write_text("int b;")
    second = source_hash(tmp_path)
    (tmp_path / "b.h").write_text("int c;")
    third = source_hash(tmp_path)
    (tmp_path / "b.h").rename(tmp_path / "c.h")
    assert len({first, second, third, source_hash(tmp_path)}) == 4
