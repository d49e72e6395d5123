"""Where a session's cache has recurrent states, as the event loop knows it. Pure."""

from moa_shared.models.checkpoints import CHECKPOINT_EVERY, kept_checkpoints

from moa_server.session.verification import StepPlan


class StatePlaces:
    """The rows that the states have taken in, and the checkpoints before them.

    `page_tokens`: checkpoints are at the ends of so many tokens; 0: there are no states, and a cache is cut anywhere.
    What the inference thread loses beyond this, it reads again by itself.
    """

    def __init__(self, page_tokens: int) -> None:
        self.checkpoints: list[int] = []  # ascending
        self._page_tokens = page_tokens
        self._taken_in = 0
        self._wanted: set[int] = set()

    def want_before(self, length: int) -> None:
        """Has the next prompt leave a checkpoint at the last full page of its first `length` tokens."""
        if self._page_tokens:
            self._wanted.add(length // self._page_tokens * self._page_tokens)

    def chunk_end(self, start: int, stop: int) -> int:
        """Where a chunk of a prompt ends that could go on to `stop`: at a checkpoint if there should be one."""
        every = (start // CHECKPOINT_EVERY + 1) * CHECKPOINT_EVERY
        wanted = (*self._wanted, every) if self._page_tokens else ()
        return min((place for place in wanted if start < place < stop), default=stop)

    def wants_at(self, length: int) -> bool:
        return bool(self._page_tokens) and (length in self._wanted or not length % CHECKPOINT_EVERY)

    def cut(self, length: int) -> int:
        """The cache is to hold so many tokens; how many it can."""
        if self._page_tokens and length < self._taken_in:
            self.checkpoints = [place for place in self.checkpoints if place <= length]
            self._taken_in = length = self.checkpoints[-1] if self.checkpoints else 0
        return length

    def on_forward(self, plan: StepPlan) -> None:
        self._taken_in = plan.fed
        if plan.leaves_checkpoint:
            self.checkpoints = kept_checkpoints(sorted({*self.checkpoints, plan.fed}))
        self._wanted = {place for place in self._wanted if place > plan.fed}

    def on_adopted(self, length: int) -> None:
        """The cache was given pages up to a checkpoint."""
        self._taken_in, self.checkpoints = length, [length]
