from __future__ import annotations

from moa_client.tools.formats.grammar import Grammar


def test_special_tokens_are_tokens_and_all_else_is_text() -> None:
    grammar = Grammar({"<|call|>": 7, "<|call": 8})
    assert grammar.markup('a"<|call|>\n<|call') == '"a\\"" <[7]> "\\n" <[8]>'
    assert grammar.markup("") == ""
    assert Grammar({}).markup("<|call|>") == '"<|call|>"'


def test_text_ends_with_a_token_or_a_text() -> None:
    grammar = Grammar({"</think>": 3})
    assert grammar.text_until("</think>") == "r0 <[3]>"
    assert grammar.text_until("\n") == "r1"
    assert grammar.lark("r0 r1") == 'start: r0 r1\nr0: /(?s:.*)/\nr1[suffix="\\n"]: /(?s:.*)/'


def test_a_choice_of_one_needs_no_rule() -> None:
    grammar = Grammar({})
    assert grammar.choice(['"a"']) == '"a"'
    assert grammar.choice(['"a"', '"b"']) == "r0"
    assert grammar.lark("r0") == 'start: r0\nr0: "a" | "b"'
