from __future__ import annotations

from moa_client.tools.reading.pieces import CallArguments, CallEnded, Piece, TextPiece, joined


def test_adjacent_pieces_of_one_text_are_joined() -> None:
    pieces: list[Piece] = [TextPiece("a"), TextPiece("b"), CallArguments(0, "{"), CallArguments(0, "}"), CallEnded(0)]
    pieces += [CallArguments(1, "{"), TextPiece("c")]
    expected = [TextPiece("ab"), CallArguments(0, "{}"), CallEnded(0), CallArguments(1, "{"), TextPiece("c")]
    assert joined(pieces) == expected
    assert joined([]) == []
