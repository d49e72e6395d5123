from __future__ import annotations

from moa_client.chat.terminal import Lines, key_bindings


def typed(*lines: str) -> list[str | None]:
    reader = Lines()
    return [reader.push(line) for line in lines]


def test_a_backslash_joins_lines() -> None:
    assert typed("one\\", "two\\", "three", "four") == [None, None, "one\ntwo\nthree", "four"]


def test_three_quotes_make_a_block() -> None:
    assert typed('"""', "a", "", "b", '"""', "c") == [None, None, None, None, "a\n\nb", "c"]
    assert typed('"""one line"""') == ["one line"]
    assert typed('"""first', 'last"""') == [None, "first\nlast"]


def test_clear_forgets_what_was_typed() -> None:
    reader = Lines()
    assert reader.push("one\\") is None
    assert reader.unfinished
    reader.clear()
    assert not reader.unfinished
    assert reader.push("two") == "two"


def test_alt_enter_is_bound() -> None:
    assert [[str(key) for key in binding.keys] for binding in key_bindings().bindings] == [
        ["Keys.Escape", "Keys.ControlM"]
    ]
