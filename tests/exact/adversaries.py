"""Drafters that are always right, always wrong, or worse."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Script = Callable[[Sequence[int], int], list[int]]
"""From the tokens so far and the room to drafted ids, as ``propose``."""


def oracle(text: Sequence[int]) -> Script:
    """Always right: it knows the target's whole text."""

    def propose(token_ids: Sequence[int], room: int) -> list[int]:
        return list(text[len(token_ids) : len(token_ids) + room])

    return propose


def liar(text: Sequence[int], vocab_size: int) -> Script:
    """Always wrong, from the first token on."""

    def propose(token_ids: Sequence[int], room: int) -> list[int]:
        truth = text[len(token_ids) : len(token_ids) + room]
        return [(token_id + 1) % vocab_size for token_id in truth]

    return propose


def gambler(text: Sequence[int], vocab_size: int, seed: int) -> Script:
    """Right for a while, then wrong, at random lengths; now and then silent."""
    dice = random.Random(seed)

    def propose(token_ids: Sequence[int], room: int) -> list[int]:
        length = dice.randint(0, room)
        truth = list(text[len(token_ids) : len(token_ids) + length])
        for at in range(dice.randint(0, length), len(truth)):
            truth[at] = dice.randrange(vocab_size)
        return truth

    return propose


def quitter(text: Sequence[int], end_id: int) -> Script:
    """Right, but with the end token in between."""

    def propose(token_ids: Sequence[int], room: int) -> list[int]:
        truth = list(text[len(token_ids) : len(token_ids) + room])
        truth[room // 2 :] = [end_id] * (room - room // 2)
        return truth

    return propose


def stranger(text: Sequence[int], vocab_size: int) -> Script:
    """Right, then with ids that are no tokens."""

    def propose(token_ids: Sequence[int], room: int) -> list[int]:
        truth = list(text[len(token_ids) : len(token_ids) + room // 2])
        return [*truth, vocab_size, -1, 2**40]

    return propose


def bungler(token_ids: Sequence[int], room: int) -> list[int]:
    """Always raises."""
    raise RuntimeError("a drafter with a bug")
