"""A program that keeps conversations until it is killed: what it has stored it says on standard output."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from moa_client.conversation.events import Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin
from moa_client.history.store import HistoryStore


class Writer:
    """Writes one conversation; all that it does follows from its number.

    Attributes:
        shown: of each answer, the text that a reader sees: committed, provisional.
    """

    def __init__(self, store: HistoryStore, number: int) -> None:
        self.shown: list[tuple[str, str]] = []
        self._store = store
        self._random = random.Random(number)
        self._number = number

    def steps(self) -> Iterator[None]:
        """Writes; yields after each step, when what it has stored may be shown."""
        conversation = self._store.create(ConversationOrigin("toy"), f"{self._number}")
        while True:
            answer = self._store.begin_answer(conversation, "question " * self._random.randrange(200), AnswerOptions())
            self.shown.append(("", ""))
            yield
            committed, waiting = "", list[int]()
            for _ in range(self._random.randrange(40)):
                if self._random.random() < 0.3:
                    waiting.append(self._random.randrange(1 << 32))
                    self._store.set_provisional(answer, waiting, words(waiting), shown=1)
                elif waiting and self._random.random() < 0.7:
                    token = waiting.pop(0)
                    committed += words([token])
                    self._store.append_committed(
                        answer,
                        [token],
                        [Provenance.DRAFT],
                        words([token]),
                        confirmed=1,
                        waiting=waiting,
                        provisional=words(waiting),
                    )
                else:
                    token = self._random.randrange(1 << 32)
                    if waiting:
                        waiting.clear()
                        self._store.set_provisional(answer, waiting, "")
                        self.shown[-1] = committed, ""
                        yield
                    committed += words([token])
                    self._store.append_committed(answer, [token], [Provenance.TARGET], words([token]))
                self.shown[-1] = committed, words(waiting)
                yield
            if self._random.random() < 0.5:
                self._store.end_answer(answer, "max_tokens", verified=False, provisional=words(waiting))
                yield
                self._store.end_answer(answer, "end_of_text", outcome="corrected")
            else:
                self._store.end_answer(answer, "end_of_text")
            self.shown[-1] = committed, ""
            yield


def words(tokens: list[int]) -> str:
    return "".join(f"{token} " for token in tokens)


if __name__ == "__main__":
    for count, _ in enumerate(Writer(HistoryStore(Path(sys.argv[1])), int(sys.argv[2])).steps(), 1):
        print(count, flush=True)
