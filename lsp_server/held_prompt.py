"""A prompt that stays the same but for what is typed, so that a key adds one to three tokens.

It is made at a cursor and held while the user types there: the text behind the cursor, what comes
from elsewhere, and where the text before the cursor begins. A jump, a change elsewhere, other
limits, or a long stretch of typing ends that, and the next request makes a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from lsp_server.documents import Edit
from lsp_server.postprocess import to_lf
from lsp_server.prompt import Budget, Prompt
from lsp_server.typed import Typed

MAX_TYPED_CHARS: Final = 1500
"""After so much new text, what was found around the cursor may be of no more use."""


@dataclass(frozen=True)
class HeldPrompt:
    """A prompt and what has been typed since."""

    prompt: Prompt
    typed: Typed
    budget: Budget

    def after(self, edit: Edit) -> HeldPrompt | None:
        """Return it after an edit; None when it has to be made anew."""
        typed = self.typed.after(edit)
        return None if typed is None else replace(self, typed=typed)

    def at(self, cursor: int, budget: Budget) -> Prompt | None:
        """Return the prompt for a cursor within limits; None when it has to be made anew."""
        if cursor != self.typed.cursor or budget != self.budget:
            return None
        text = to_lf(self.typed.text)
        prefix = self.prompt.prefix + text
        is_too_long = len(text) > MAX_TYPED_CHARS or len(prefix) > max(
            budget.prefix_chars, len(self.prompt.prefix)
        )
        return None if text and is_too_long else replace(self.prompt, prefix=prefix)
