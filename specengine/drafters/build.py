"""From the name of a way of drafting to its source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

from specengine.drafters.adaptive import AdaptiveDrafts
from specengine.drafters.base import DrafterSource
from specengine.drafters.composite import CompositeDrafts
from specengine.drafters.none import NoDrafts
from specengine.drafters.pass_times import PassTimes
from specengine.drafters.suffix import SuffixDrafts
from specengine.errors import SettingsInvalid

AUTO: Final = "auto"
"""Adaptive: each drafter as far as it pays."""

AUTO_PARTS: Final = ("suffix",)
"""What it is made of, those that cost least first; others join it by ``+``."""

MAX_PARTS: Final = 4
"""Drafters of one composite."""

Recipes = Mapping[str, Callable[[], DrafterSource]]


def recipes(model_drafts: Callable[[], DrafterSource], history_bytes: int = 0) -> Recipes:
    """Return how to make each drafter; ``model_drafts`` loads the draft model when asked to.

    Whoever asks for suffix drafts gets the same ones: there is one history, and one limit to it.
    """
    suffix = functools.cache(lambda: SuffixDrafts(history_bytes))
    return {"none": NoDrafts, "suffix": suffix, "draft_model": model_drafts}


def build(name: str, known: Recipes, times: Callable[[], PassTimes]) -> DrafterSource:
    """Return the source for a name, or for several joined by ``+`` in order of preference.

    With ``auto`` among them all are used as far as they pay; ``times`` tells what passes take.

    Raises:  SettingsInvalid for an unknown name; what a recipe raises.
    """
    parts = _parts(name)
    if len(parts) > MAX_PARTS or len(set(parts)) < len(parts):
        raise SettingsInvalid(f"a drafter joins at most {MAX_PARTS} different ones.")
    for part in parts:
        if part not in known:
            raise SettingsInvalid(
                f"there is no drafter {part!r}.", hint=f"There are {AUTO}, {', '.join(known)}."
            )
    sources = [known[part]() for part in parts]
    if AUTO in name.split("+"):
        return AdaptiveDrafts(sources, times(), name)
    return sources[0] if len(sources) == 1 else CompositeDrafts(sources)


def _parts(name: str) -> list[str]:
    parts: list[str] = []
    for part in name.split("+", MAX_PARTS):
        parts += AUTO_PARTS if part == AUTO else (part,)
    return parts
