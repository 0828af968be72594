r"""Text that the next tokens must begin with, however they cut it.

A prompt is healed by stepping back to a boundary where no later text can change the tokens before
it, and by forcing what was stepped over. The model is then free to write the forced text in the
tokens that it would have used itself: ``"\n    "`` typed, ``"\n   "`` and ``" return"`` written.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final

import torch

from specengine.models.tokenizer import Tokenizer

MAX_HEALED_TOKENS: Final = 16
"""A last word of more tokens (a long number, a line of dashes) is healed by its last token only."""


class Vocabulary:
    """A model's tokens in the order of their bytes, to find those that fit a forced text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        pairs = [(tokenizer.token_bytes(at), at) for at in range(tokenizer.vocab_size)]
        self._sorted = sorted(pair for pair in pairs if pair[0])
        self._ids: dict[bytes, list[int]] = {}
        for token_bytes, token_id in self._sorted:
            self._ids.setdefault(token_bytes, []).append(token_id)

    def can_spell(self, text: bytes) -> bool:
        """Whether every byte is a token, so that no beginning of the text is a dead end."""
        return all(bytes([byte]) in self._ids for byte in set(text))

    def fitting(self, text: bytes) -> list[int]:
        """Return the ids of tokens that begin with the text or are a beginning of it, ascending."""
        first = bisect.bisect_left(self._sorted, (text, -1))
        ids: list[int] = []
        for token_bytes, token_id in self._sorted[first:]:
            if not token_bytes.startswith(text):
                break
            ids.append(token_id)
        for length in range(1, len(text)):
            ids.extend(self._ids.get(text[:length], ()))
        return sorted(ids)


@dataclass(frozen=True)
class ForcedText:
    """What is still to be written as forced."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    remaining: bytes

    def allowed(self) -> torch.Tensor | None:
        """Return the ids that may come next, or None when nothing is forced any more."""
        if not self.remaining:
            return None
        return torch.tensor(self.vocabulary.fitting(self.remaining))

    def after(self, token_id: int) -> ForcedText:
        """Return what is left to force once a token is written.

        A token that does not fit leaves the rest as it is: a draft may hold one, and its row is
        chosen but never reached.
        """
        written = self.tokenizer.token_bytes(token_id)
        if not self.remaining or not written:
            return self
        if self.remaining.startswith(written) or written.startswith(self.remaining):
            return ForcedText(self.tokenizer, self.vocabulary, self.remaining[len(written) :])
        return self


def safe_boundary(words: list[tuple[int, int]], tokenizer: Tokenizer) -> int:
    """Return how many tokens of a text stay the same whatever follows it.

    ``words`` are its tokens with the word that each lies in. The last word may change; a run of
    white space may change as a whole (an indentation and its newline); and an apostrophe joins the
    letters after it once they make a contraction: ``'r`` is two words, ``'re`` one.
    """
    end = _last_word(words, len(words))
    last = _text(words[end:], tokenizer)
    while end:
        start = _last_word(words, end)
        before = _text(words[start:end], tokenizer)
        is_joined = before.isspace() if last.isspace() else before == "'"
        if not is_joined:
            break
        end = start
    if len(words) - end > MAX_HEALED_TOKENS:
        return len(words) - 1
    return end


def _last_word(words: list[tuple[int, int]], end: int) -> int:
    """Return where the word that ends at ``end`` starts; 0 for an empty text."""
    start = max(end - 1, 0)
    while start and words[start - 1][1] == words[start][1]:
        start -= 1
    return start


def _text(words: list[tuple[int, int]], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(token_id for token_id, _ in words)
