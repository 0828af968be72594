"""Finished suggestions of one document, found again by what surrounds the cursor.

A suggestion answers its own prompt, and each prompt that goes on with what it says: a user who
types along, steps back, or undoes is served without the engine. Any other edit near the cursor
changes the prompt, and so finds nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from lsp_server.prompt import Prompt
from lsp_server.typed import AUTO_CLOSED

CAPACITY: Final = 32
"""Suggestions kept for each document."""


@dataclass(frozen=True)
class Suggestion:
    """What the model wrote for a prompt; LF, cut where the block ends."""

    prompt: Prompt
    text: str
    is_shown: bool = False
    """It stood on the screen like this: whoever types along or comes back sees the same again."""
    is_ahead: bool = False
    """It was written before anybody asked."""


class SuggestionCache:
    """The latest suggestions of one document."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._suggestions: deque[Suggestion] = deque(maxlen=capacity)

    def store(self, suggestion: Suggestion) -> None:
        """Keep a suggestion; the oldest one makes room."""
        self._suggestions.appendleft(suggestion)

    def find(self, prompt: Prompt) -> Suggestion | None:
        """Return what remains of a stored suggestion at this prompt, newest first.

        What stood on the screen last gives way only to a text that goes on from it. An empty text
        means that the model has nothing to say here.
        """
        newest: Suggestion | None = None
        for suggestion in self._suggestions:
            if (remainder := remaining(suggestion, prompt)) is None:
                continue
            found = replace(suggestion, prompt=prompt, text=remainder)
            newest = newest or found
            if found.is_shown:
                return newest if newest.text.startswith(remainder) else found
        return newest

    def clear(self) -> None:
        """Forget all."""
        self._suggestions.clear()


def remaining(suggestion: Suggestion, prompt: Prompt) -> str | None:
    """Return the text that is left when the prompt goes on as the suggestion does."""
    before = suggestion.prompt.prefix
    if not prompt.prefix.startswith(before):
        return None
    typed = prompt.prefix[len(before) :]
    if not suggestion.text.startswith(typed):
        return None
    if typed and typed == suggestion.text:
        return None  # all of it is there: what follows is a new question
    if not is_same_suffix(suggestion.prompt.suffix, prompt.suffix, typed):
        return None
    return suggestion.text[len(typed) :]


def is_same_suffix(old: str, new: str, typed: str) -> bool:
    """Whether the text behind the cursor is what it was, but for closed brackets and quotes."""
    if new == old:
        return True
    if new[:1] not in AUTO_CLOSED.values() or not any(opener in typed for opener in AUTO_CLOSED):
        return False
    # Both are cut at a line within the same budget, so that the longer one may end earlier.
    return old.startswith(new[1:]) or new[1:].startswith(old)
