"""Files of a question: what may be one, and how they are framed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_client.surface.question_files import MOST_FILE_BYTES, TextFile, framed, text_file, unframed
from moa_shared.errors import ConfigError

from tests.support.messages import raises

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=8)
FILES = st.lists(st.builds(TextFile, NAMES, st.text("`a\nFile :", max_size=20)), max_size=3)


def test_a_file_is_framed_before_the_question() -> None:
    files = [text_file("docs/notes.md", b"\xef\xbb\xbfUse ```` here.\r\n"), text_file("b.txt", "é\n\n".encode())]
    assert framed("Why?", files) == snapshot("""\
File notes.md:
`````
Use ```` here.
`````

File b.txt:
```
é

```

Why?""")


@given(FILES, st.text("`a\n:", max_size=20))
def test_what_was_framed_is_found_again(files: list[TextFile], question: str) -> None:
    assert unframed(framed(question, files)) == (question, files)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cat.png", b"\x89PNG\r\n\x1a\n\0", snapshot("cat.png is a picture: models here read text only.")),
        ("a.bin", b"a\0b", snapshot("a.bin is not text in UTF-8: models here read text only.")),
        ("a\nb.txt", b"\xe9", snapshot("a_b.txt is not text in UTF-8: models here read text only.")),
        (
            "long.txt",
            bytes(MOST_FILE_BYTES + 1),
            snapshot(
                "long.txt has 524,289 bytes, more than the 524,288 that a file of a question may have. Give a part of it."
            ),
        ),
    ],
)
def test_what_is_no_text_is_refused_by_name(name: str, content: bytes, message: str) -> None:
    with raises(ConfigError, message):
        text_file(name, content)
