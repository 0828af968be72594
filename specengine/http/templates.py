"""Prompts into which a client has already written fill-in-the-middle markers.

Such a client chose a template by the name of a model that it believes to talk to. Its markers are
taken off here, and the engine writes those of the model that it has.
"""

from __future__ import annotations

from collections.abc import Iterable

from specengine.models.registry import FimTemplate


def split(prompt: str, templates: Iterable[FimTemplate]) -> tuple[str, str]:
    """Return the texts before and behind the cursor.

    A prompt without the markers of any template stands before the cursor as it is.
    """
    for template in templates:
        parts = _prefix_first(prompt, template) or _suffix_first(prompt, template)
        if parts is not None:
            return parts
    return prompt, ""


def _prefix_first(prompt: str, template: FimTemplate) -> tuple[str, str] | None:
    """Return the parts of ``PREFIX before SUFFIX after MIDDLE``; other files may stand in front."""
    if template.middle is None or not prompt.endswith(template.middle):
        return None
    head, has_prefix, rest = prompt.removesuffix(template.middle).partition(template.prefix)
    # The last one: a file that is about these markers may hold them itself.
    before, has_suffix, after = rest.rpartition(template.suffix)
    if not has_prefix or not has_suffix or template.middle in after:
        return None
    return head + before, after


def _suffix_first(prompt: str, template: FimTemplate) -> tuple[str, str] | None:
    """Return the parts of ``SUFFIX after PREFIX before``, with or without ``MIDDLE``."""
    if not prompt.startswith(template.suffix):
        return None
    after, has_prefix, before = prompt.removeprefix(template.suffix).partition(template.prefix)
    return (before.removesuffix(template.middle or ""), after) if has_prefix else None
