"""From the name of a way of drafting to its source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""What it is made of at least; others join it by ``+``."""

MAX_PARTS: Final = 4
"""Drafters of one composite."""

Recipes = Mapping[str, Callable[[], DrafterSource]]


HEADS: Final = ("eagle", "medusa", "mtp", "parallel", "streaming", "layer_skip")
"""Kinds of trained heads."""


def recipes(
    model_drafts: Callable[[], DrafterSource],
    head_drafts: Callable[[str], DrafterSource],
    history_bytes: int = 0,
) -> Recipes:
    """Return how to make each drafter; draft model and heads are loaded when they are asked for.

    Whoever asks for suffix drafts gets the same ones: there is one history, and one limit to it.
    """
    suffix = functools.cache(lambda: SuffixDrafts(history_bytes))
    heads = {kind: functools.partial(head_drafts, kind) for kind in HEADS}
    return {"none": NoDrafts, "suffix": suffix, "draft_model": model_drafts, **heads}


def auto_parts(heads: Iterable[str]) -> tuple[str, ...]:
    """Return what ``auto`` is made of for a model with these heads, those that cost least first.

    Of heads it takes the one that models.toml names first: two that guess alike cost twice.
    """
    return (*AUTO_PARTS, *list(heads)[:1])


def build(
    name: str,
    known: Recipes,
    times: Callable[[], PassTimes],
    parts_of_auto: Sequence[str] = AUTO_PARTS,
) -> DrafterSource:
    """Return the source for a name, or for several joined by ``+`` in order of preference.

    With ``auto`` among them all are used as far as they pay; ``times`` tells what passes take.

    Raises:  SettingsInvalid for an unknown name; what a recipe raises.
    """
    parts = _parts(name, parts_of_auto)
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


def _parts(name: str, parts_of_auto: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for part in name.split("+", MAX_PARTS):
        parts += parts_of_auto if part == AUTO else (part,)
    return parts
