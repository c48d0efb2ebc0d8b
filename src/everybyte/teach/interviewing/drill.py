"""Ask the interview's questions one by one; missed cards return."""

from .cards import Answered

_BACK = 3  # cards that come before one that was missed comes back


class Drill:
    """Questions one by one: `answer(...)` reveals the card, `knew()` or `missed()` goes on.

    A missed card returns after three others, or at the end. Nothing is random. asked: ids of the asked cards, in order.
    """

    def __init__(self, deck, order):
        self.deck, self._queue, self.asked, self.misses = deck, list(order), [], {}
        self._said = None
        self._ask()

    @property
    def card(self) -> Answered | None:
        """The current card; None at the end."""
        return self.deck.card(self._queue[0]) if self._queue else None

    @property
    def left(self) -> int:
        """The number of cards left, with the current one."""
        return len(self._queue)

    def answer(self, text: str) -> "Drill":
        """Show the card's answer beside yours, which is a sentence.

        Raises:
            ValueError: where there is no text (it is `...` until you write one), or no question is left.
        """
        self._must()
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"drill.answer: {text!r} is no text; say a sentence first, then look")
        self._said = text
        return self

    def knew(self) -> "Drill":
        """Note that you knew the answer: the card is done."""
        self._must(revealed=True)
        self._queue.pop(0)
        return self._ask()

    def missed(self) -> "Drill":
        """Note that you did not know the answer: the card returns."""
        self._must(revealed=True)
        id = self._queue.pop(0)
        self.misses[id] = self.misses.get(id, 0) + 1
        self._queue.insert(min(_BACK, len(self._queue)), id)
        return self._ask()

    def _ask(self):
        self._said = None
        self.asked += self._queue[:1]
        return self

    def _must(self, revealed=False):
        if not self._queue:
            raise ValueError("drill: no question is left; start another with deck.drill()")
        if revealed and self._said is None:
            raise ValueError("drill: answer first, drill.answer('...'), then say whether you knew it")

    def __repr__(self):
        if not self._queue:
            return f"Done: {len(set(self.asked))} cards, {sum(self.misses.values())} missed on the way."
        head = f"[{self.left} left] {self.card.question}"
        if self._said is None:
            return f"{head}\nYour answer first: drill.answer('...')"
        return (
            f"{head}\nYou said: {self._said}\n\n{self.card.text()}\n\nDid you have it? drill.knew() or drill.missed()"
        )
