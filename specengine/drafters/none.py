"""No drafting: plain decoding through the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from specengine.draft import NOTHING, Draft
from specengine.sampling import GREEDY, Sampling


class NoDrafts:
    """Source and drafter in one, as it holds nothing."""

    name = "none"

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> NoDrafts:
        """Return itself."""
        return self

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return nothing."""
        return NOTHING

    def close(self) -> None:
        """Do nothing."""
