"""What every dialect tells of a completion beside its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from specengine.errors import InternalFault, Refused
from specengine.protocol import CancelCause, StopReason
from specengine.scheduler import Outcome

Timings = dict[str, float]


def timings(outcomes: Sequence[Outcome]) -> Timings:
    """Return llama.cpp's ``timings``, summed over the completions of a request.

    Units:   milliseconds. ``predicted_ms`` is the time from the read prompt to the end, with all
        waiting for other requests' passes.
    """
    prompt_n = sum(outcome.counts.prefilled for outcome in outcomes)
    predicted_n = sum(len(outcome.token_ids) for outcome in outcomes)
    prompt_ms = sum(outcome.counts.prefill_ms for outcome in outcomes)
    predicted_ms = sum(
        max(0.0, outcome.total_ms - outcome.queue_ms - outcome.counts.prefill_ms)
        for outcome in outcomes
    )
    return {
        "prompt_n": prompt_n,
        "cache_n": sum(outcome.counts.reused for outcome in outcomes),
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(prompt_n, 1),
        "prompt_per_second": _per_second(prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(predicted_n, 1),
        "predicted_per_second": _per_second(predicted_n, predicted_ms),
        "draft_n": sum(outcome.counts.drafted for outcome in outcomes),
        "draft_n_accepted": sum(outcome.counts.accepted for outcome in outcomes),
    }


def num_healed(outcome: Outcome, token_bytes: Callable[[int], bytes]) -> int:
    """Return how many of the first tokens write nothing that is not in the prompt already."""
    left = outcome.num_healed_bytes
    for number, token_id in enumerate(outcome.token_ids):
        left -= len(token_bytes(token_id))
        if left < 0:
            return number
    return len(outcome.token_ids)


def check_finished(outcome: Outcome) -> Outcome:
    """Return an outcome that is an answer.

    Raises:  Refused for a request that was ended by somebody else; InternalFault.
    """
    if outcome.stop_reason is not StopReason.CANCELLED:
        return outcome
    if outcome.cause is CancelCause.SHUTDOWN:
        raise Refused("the engine is being shut down.", reason="shutting_down", status=503)
    if outcome.cause is CancelCause.SUPERSEDED:
        raise Refused("a newer request took this one's place.", reason="superseded", status=409)
    raise InternalFault(f"the request was cancelled ({outcome.cause}).")


def event(content: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _per_second(number: float, ms: float) -> float:
    return 1000 * number / ms if ms > 0 else 0.0
