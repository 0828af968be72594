"""From the name of a way of drafting to its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from specengine.drafters.base import DrafterSource
from specengine.drafters.composite import CompositeDrafts
from specengine.drafters.none import NoDrafts
from specengine.drafters.suffix import SuffixDrafts
from specengine.errors import SettingsInvalid

AUTO: Final = "suffix"
"""What ``auto`` stands for."""

MAX_PARTS: Final = 4
"""Drafters of one composite."""

Recipes = Mapping[str, Callable[[], DrafterSource]]


def recipes(model_drafts: Callable[[], DrafterSource]) -> Recipes:
    """Return how to make each drafter; ``model_drafts`` loads the draft model when asked to."""
    return {"none": NoDrafts, "suffix": SuffixDrafts, "draft_model": model_drafts}


def resolve(name: str) -> str:
    """Return a name with what ``auto`` stands for in its place."""
    return "+".join(AUTO if part == "auto" else part for part in name.split("+", MAX_PARTS))


def build(name: str, known: Recipes) -> DrafterSource:
    """Return the source for a name, or for several joined by ``+``.

    Raises:  SettingsInvalid for an unknown name; what a recipe raises.
    """
    parts = resolve(name).split("+")
    if len(parts) > MAX_PARTS or len(set(parts)) < len(parts):
        raise SettingsInvalid(f"a drafter joins at most {MAX_PARTS} different ones.")
    for part in parts:
        if part not in known:
            raise SettingsInvalid(
                f"there is no drafter {part!r}.", hint=f"There are auto, {', '.join(known)}."
            )
    sources = [known[part]() for part in parts]
    return sources[0] if len(sources) == 1 else CompositeDrafts(sources)
