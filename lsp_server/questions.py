"""What to ask the engine at a cursor: the message, and what is to become of its answer.

Pure functions of a snapshot; they send nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

import msgspec

from lsp_server.block import Scope, Site, find_site
from lsp_server.documents import Snapshot
from lsp_server.indentation import find_unit
from lsp_server.place import Place
from lsp_server.postprocess import num_covered, to_lf, with_line_ends
from lsp_server.prompt import Prompt
from lsp_server.quoting import SCAN_CHARS, window_above
from lsp_server.run import Question, RunPlan
from lsp_server.settings import CompletionSettings
from lsp_server.syntax import grammar_of
from specengine.client import Client
from specengine.protocol import Complete, SamplingOptions

PROSE_LANGUAGES: Final = frozenset(("markdown", "plaintext", "latex", "restructuredtext", ""))

NUM_NEXT_LINES: Final = 8
"""Lines below the cursor's that the rules look at."""

ALTERNATIVE_TEMPERATURE: Final = 0.6
"""Alternatives to a greedy suggestion are drawn; at 0 they would all be the same."""

_NEXT_CHARS: Final = 2000
_REST_CHARS: Final = 500
_SITE_CHARS: Final = 4000


def place_of(snapshot: Snapshot) -> Place:
    """Return what the rules on the text must know of a cursor."""
    below = to_lf(snapshot.text[snapshot.line_end : snapshot.line_end + _NEXT_CHARS])
    next_lines = [line for line in below.split("\n")[1:] if line.strip()][:NUM_NEXT_LINES]
    is_prose = snapshot.language in PROSE_LANGUAGES
    grammar = grammar_of(snapshot.language)
    above_start = max(0, snapshot.line_start - 2 * SCAN_CHARS)  # twice: CR LF becomes one
    above = to_lf(snapshot.text[above_start : snapshot.line_start])[-SCAN_CHARS:]
    window = window_above(above, grammar)
    return Place(
        snapshot.before,
        snapshot.rest[:_REST_CHARS],
        tuple(next_lines),
        is_prose,
        window,
        grammar,
        find_unit([*reversed(next_lines), *window.split("\n"), snapshot.before + "."]),
    )


def site_of(snapshot: Snapshot, place: Place, forced: str, widest: Scope = Scope.BLOCK) -> Site:
    """Return what is to be filled at a cursor, behind a forced text."""
    before = to_lf(snapshot.text[max(0, snapshot.cursor - _SITE_CHARS) : snapshot.cursor])
    return find_site(before + forced, place.rest, place.grammar, widest)


def make_question(
    client: Client, snapshot: Snapshot, plan: RunPlan, completion: CompletionSettings
) -> Question:
    """Return how to ask for a plan in a document."""
    max_tokens = {
        Scope.LINE: completion.line_max_tokens,
        Scope.BLOCKS: completion.invoked_max_tokens,
    }
    message = Complete(
        request=client.next_request(),
        # Windows share an engine: one may not supersede the other's request.
        document=f"{os.getpid()}:{snapshot.uri}",
        prefix=plan.prompt.prefix + plan.forced,
        suffix=plan.prompt.suffix,
        files=plan.prompt.files,
        max_tokens=max_tokens.get(plan.site.scope, completion.max_tokens),
        sampling=SamplingOptions(temperature=completion.temperature, seed=completion.seed),
        is_ahead=bool(plan.known),
        language=snapshot.language,
    )
    return Question(client, message, plan)


def as_alternative(question: Question, number: int) -> Question:
    """Return the same question for another answer; the engine shares passes between the two.

    The engine's own ``n`` would write one after the other, unseen, so that none could be stopped
    where its block ends.
    """
    message = question.message
    sampling = msgspec.structs.replace(
        message.sampling,
        temperature=max(message.sampling.temperature, ALTERNATIVE_TEMPERATURE),
        seed=message.sampling.seed + number,
    )
    message = msgspec.structs.replace(
        message,
        request=question.client.next_request(),
        document=f"{message.document}#{number}",
        sampling=sampling,
    )
    return replace(question, message=message)


def plan_behind(
    snapshot: Snapshot, prompt: Prompt, shown: str, *, is_ended: bool
) -> RunPlan | None:
    """Return a plan as if a shown suggestion had been accepted; None where that is unclear.

    Behind an ended statement it is what the next line holds.
    """
    if num_covered(shown, snapshot.rest):
        return None  # accepting changes the text behind the cursor, too
    inserted = with_line_ends(shown, snapshot.eol)
    text = snapshot.text[: snapshot.cursor] + inserted + snapshot.text[snapshot.cursor :]
    last_line = inserted.rfind("\n") + 1
    accepted = replace(
        snapshot,
        text=text,
        cursor=snapshot.cursor + len(inserted),
        line_start=snapshot.cursor + last_line if last_line else snapshot.line_start,
        line_end=snapshot.line_end + len(inserted),
    )
    if is_ended and accepted.rest.strip():
        return None  # only brackets follow, which stand there already
    place = place_of(accepted)
    forced = "\n" if is_ended else ""
    site = site_of(accepted, place, forced)
    behind = replace(prompt, prefix=prompt.prefix + shown)
    return RunPlan(behind, snapshot.cursor, forced, site, place, known=shown)
