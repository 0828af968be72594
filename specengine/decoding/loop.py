"""One step of speculative decoding: forward, verify, commit. Read this page first.

A step takes the committed tokens and a draft of what follows. One forward pass scores the draft's
tokens and the one after them; those that the target would have chosen itself are accepted, and the
target's own next token is added. A bad draft costs nothing but its rows: the text is the same.

The loop knows no drafter, no text and no request. It is the only place that commits tokens.

Source: Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318.
"""

from __future__ import annotations

from collections.abc import Sequence

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft, Verdict
from specengine.models.linear import ROW_BLOCK
from specengine.models.target import Rows, Target, Tree


def prompt_rows(target: Target, cache: KVCache, token_ids: Sequence[int], most: int) -> Rows | None:
    """Return the next chunk of the prompt to compute, or None when a step can follow.

    It has ``most`` rows at most. A step takes the last chunk itself, so that costs no own pass.
    """
    pending = token_ids[cache.length :]
    most = min(most, target.prompt_rows)
    if len(pending) <= most:
        return None
    return Rows(list(pending[:most]), cache, num_logits=0)


def draft_room(num_pending: int, num_draft_tokens: int) -> int:
    """Return how many drafted tokens fit a pass.

    Rows are computed in blocks; behind a prompt's last chunk only rows that would be padding are
    given to a draft.
    """
    return num_draft_tokens if num_pending == 1 else min(num_draft_tokens, -num_pending % ROW_BLOCK)


def step_rows(cache: KVCache, token_ids: Sequence[int], draft: Draft) -> Rows:
    """Return what a pass must compute to verify a draft behind the committed tokens."""
    pending = token_ids[cache.length :]
    assert pending, "the last committed token must still be computed"
    tree = None if draft.is_chain else Tree.behind(len(pending), draft.parents)
    return Rows([*pending, *draft.token_ids], cache, len(draft) + 1, tree)


def commit(cache: KVCache, token_ids: list[int], draft: Draft, verdict: Verdict) -> None:
    """Take over what the target agrees with, plus one token.

    ``token_ids`` grows by the accepted tokens and the next one; the cache then holds all but the
    last of them.
    """
    cache.keep(len(token_ids), verdict.accepted)
    token_ids += [draft.token_ids[node] for node in verdict.accepted]
    token_ids.append(verdict.next_id)
