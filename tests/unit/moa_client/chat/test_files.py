"""Text files that go with a question."""

from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.chat.question import MOST_BYTES, TextFile, folded, read_text_file, with_files
from moa_shared.errors import DataError, MoaError


def test_text_is_read_whatever_program_has_written_it(tmp_path: Path) -> None:
    path = tmp_path / 'a "b".txt'
    path.write_bytes("\ufeffeins\r\nzwei ä\r\n".encode())
    assert read_text_file(path) == TextFile("a 'b'.txt", "eins\nzwei ä")


def test_files_are_framed_before_the_question_and_folded_for_a_person() -> None:
    asked = with_files("Which?", [TextFile("a.txt", "one\n\ntwo"), TextFile("b.txt", "")])
    assert asked == snapshot("""\
<file name="a.txt">
one

two
</file>

<file name="b.txt">

</file>

Which?\
""")
    assert folded(asked) == "[a.txt] [b.txt] Which?"
    assert with_files("Which?", []) == folded("Which?") == "Which?"
    with pytest.raises(DataError, match="together"):
        with_files("Which?", [TextFile("a.txt", "ä" * (MOST_BYTES // 4))] * 3)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.png", b"anything", "FOLDER/a.png is a picture: models read text only."),
        ("a", b"\x89PNG\r\n", "FOLDER/a is a picture: models read text only."),
        ("a.pdf", b"%PDF-1.7\n\0\xff", "FOLDER/a.pdf is not text in UTF-8."),
        ("a.txt", "ä".encode("latin-1"), "FOLDER/a.txt is not text in UTF-8."),
        ("a.txt", "a".encode("utf-16"), "FOLDER/a.txt is not text in UTF-8."),
        ("a.txt", b"a" * (MOST_BYTES + 1), "FOLDER/a.txt has more than 256 KiB."),
        ("a.txt", None, "The file FOLDER/a.txt cannot be read: No such file or directory."),
        (".", None, "FOLDER is not a file."),
    ],
)
def test_what_is_no_text_is_refused_by_its_name(tmp_path: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(MoaError) as raised:
        read_text_file(tmp_path / name)
    assert raised.value.message.replace(str(tmp_path), "FOLDER") == words
    assert raised.value.exit_code == (66 if data is None and name != "." else 65)
