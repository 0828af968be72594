from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from specengine.sampling import Behind, Sampling, choose, probabilities, processed

SAMPLED = Sampling(temperature=0.8, seed=11)


def random_logits(num_rows: int, vocab_size: int = 40) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(3)) * 3


def choices(
    logits: torch.Tensor, sampling: Sampling, *, start: int = 0, allowed: list[int] | None = None
) -> list[int]:
    ids = None if allowed is None else torch.tensor(allowed)
    num_rows = logits.shape[0]
    rows = processed(logits, [Behind((), (), ids)] * num_rows, sampling)
    return choose(rows, list(range(start, start + num_rows)), sampling)


def test_greedy_takes_the_highest_logit() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert choices(logits, Sampling()) == [1, 0]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, 1234:] = 1
    assert choices(logits, Sampling()) == [1234]
    assert choices(logits, Sampling(), allowed=[3, 2000, 3000]) == [2000]


def test_greedy_ignores_seed_and_position() -> None:
    logits = random_logits(4)
    assert choices(logits, Sampling(seed=1), start=9) == choices(logits, Sampling(seed=2))


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_forced_row_takes_the_best_allowed_id(sampling: Sampling) -> None:
    """It takes what it would take if all other ids were hopeless."""
    logits = random_logits(20)
    allowed = [3, 7, 8, 39]
    hopeless = torch.full_like(logits, -1e9)
    hopeless[:, allowed] = logits[:, allowed]
    chosen = choices(logits, sampling, allowed=allowed)
    assert chosen == choices(hopeless, sampling)
    assert len(set(chosen)) > 1


def test_each_row_has_its_own_allowed_ids() -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0]] * 3)
    allowed = [None, torch.tensor([1, 2]), torch.tensor([1])]
    rows = processed(logits, [Behind((), (), ids) for ids in allowed], Sampling())
    assert choose(rows, [0, 1, 2], Sampling()) == [0, 2, 1]


def test_sampled_choice_is_the_same_alone_and_among_others() -> None:
    """The law that makes speculation exact."""
    logits = random_logits(8)
    together = choices(logits, SAMPLED, start=100)
    alone = [choices(logits[row : row + 1], SAMPLED, start=100 + row)[0] for row in range(8)]
    assert together == alone


def test_positions_have_different_noise() -> None:
    chosen = choices(torch.zeros(64, 1000), SAMPLED)
    assert len(set(chosen)) > 55


def test_noise_of_a_position_is_not_that_of_another_shifted() -> None:
    chosen = choices(torch.zeros(64, 1000), SAMPLED)
    assert len({second - first for first, second in pairwise(chosen)}) > 55


@pytest.mark.parametrize("seeds", [range(64), range(0, 2**40, 2**34), range(-8, 0)])
def test_seeds_have_different_noise(seeds: range) -> None:
    logits = torch.zeros(4, 1000)
    texts = {tuple(choices(logits, Sampling(1.0, seed))) for seed in seeds}
    assert len(texts) == len(seeds)


def test_neighbouring_seeds_and_positions_do_not_share_noise() -> None:
    logits = torch.zeros(32, 1000)
    first, second = choices(logits, Sampling(1.0, 5)), choices(logits, Sampling(1.0, 6))
    assert not set(pairwise(first)) & set(pairwise(second))


def test_sampled_choices_follow_the_softmax() -> None:
    """Chi-squared over 8 ids and 6,000 draws of one seed at consecutive positions.

    The bound of 29.9 has a false-alarm rate of 1e-4, once for all as the seed is fixed.
    """
    logits = torch.tensor([0.5, 1.0, -1.0, 2.0, 0.0, 1.5, -0.5, 0.25])
    num_draws, temperature = 6000, 0.7
    drawn = choices(logits.expand(num_draws, -1), Sampling(temperature, seed=5))
    expected = (logits / temperature).softmax(0) * num_draws
    counted = torch.bincount(torch.tensor(drawn), minlength=8)
    assert float(((counted - expected) ** 2 / expected).sum()) < 29.9


def test_sampled_choices_of_consecutive_seeds_follow_the_softmax() -> None:
    """Users count seeds up, too. The bound of 21.1 has a false-alarm rate of 1e-4."""
    logits = torch.tensor([[0.5, 1.0, -1.0, 2.0]])
    drawn = [choices(logits, Sampling(1.0, seed), start=300)[0] for seed in range(3000)]
    expected = logits[0].softmax(0) * len(drawn)
    counted = torch.bincount(torch.tensor(drawn), minlength=4)
    assert float(((counted - expected) ** 2 / expected).sum()) < 21.1


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-44, 5e-324])
def test_sampling_near_zero_becomes_greedy(temperature: float) -> None:
    logits = random_logits(16)
    assert choices(logits, Sampling(temperature, seed=1)) == choices(logits, Sampling())


def test_high_temperature_becomes_uniform() -> None:
    logits = random_logits(2000, vocab_size=4)
    counted = torch.bincount(torch.tensor(choices(logits, Sampling(1e4, seed=1))), minlength=4)
    assert int(counted.min()) > 500 - 5 * math.sqrt(2000 * 0.25 * 0.75)


def kept(logits: torch.Tensor, sampling: Sampling, behind: Behind | None = None) -> list[int]:
    """Return the ids that may be drawn."""
    (row,) = processed(logits[None], [behind or Behind((), ())], sampling)
    return torch.isfinite(row).nonzero()[:, 0].tolist()


def test_wishes_at_their_defaults_leave_the_logits_as_they_are() -> None:
    logits = random_logits(3)
    assert processed(logits, [Behind((1,), (2,))] * 3, SAMPLED) is logits


@pytest.mark.parametrize(
    ("top_k", "ids"), [(1, [2]), (2, [2, 3]), (3, [0, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_likeliest(top_k: int, ids: list[int]) -> None:
    logits = torch.tensor([1.0, 0.0, 4.0, 2.0])
    assert kept(logits, Sampling(temperature=1, top_k=top_k)) == ids


def test_among_equals_the_lowest_ids_stay() -> None:
    assert kept(torch.zeros(6), Sampling(temperature=1, top_k=2)) == [0, 1]


@pytest.mark.parametrize(
    ("top_p", "ids"), [(0.5, [2]), (0.61, [2, 3]), (0.89, [2, 3]), (0.91, [0, 2, 3])]
)
def test_top_p_keeps_what_reaches_the_share(top_p: float, ids: list[int]) -> None:
    logits = torch.tensor([0.1, 0.001, 0.6, 0.299]).log()
    assert kept(logits, Sampling(temperature=1, top_p=top_p)) == ids


def test_min_p_is_a_share_of_the_likeliest() -> None:
    logits = torch.tensor([0.2, 0.1, 0.6, 0.1]).log()
    assert kept(logits, Sampling(temperature=1, min_p=0.3)) == [0, 2]


def test_limits_see_the_temperature_and_one_token_always_stays() -> None:
    logits = torch.tensor([0.0, 1.0])
    assert kept(logits, Sampling(temperature=0.1, min_p=0.5)) == [1]
    assert kept(logits, Sampling(temperature=10, min_p=0.5)) == [0, 1]
    assert kept(logits, Sampling(temperature=1, top_p=0.0, min_p=1.0)) == [1]


def test_what_is_limited_is_drawn_from_what_is_left() -> None:
    sampling = Sampling(temperature=1, top_k=2)
    rows = processed(torch.tensor([[0.0, 3.0, 2.0]]), [Behind((), ())], sampling)
    assert probabilities(rows, sampling)[0].tolist() == pytest.approx([0, 0.7311, 0.2689], abs=1e-4)


def test_a_greedy_choice_has_all_the_probability() -> None:
    assert probabilities(torch.tensor([[0.0, 3.0, 2.0]]), Sampling())[0].tolist() == [0, 1, 0]


def penalized(sampling: Sampling, prompt: tuple[int, ...], text: tuple[int, ...]) -> list[float]:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5]])
    return processed(logits, [Behind(prompt, text)], sampling)[0].tolist()


def test_a_repetition_penalty_counts_prompt_and_text_once() -> None:
    assert penalized(Sampling(repetition_penalty=2), (0,), (1, 1)) == [1.0, -4.0, 1.0, 0.5]


def test_presence_and_frequency_penalties_count_the_text_only() -> None:
    assert penalized(Sampling(presence_penalty=0.5), (0, 3), (1, 1)) == [2.0, -2.5, 1.0, 0.5]
    assert penalized(Sampling(frequency_penalty=0.5), (0, 3), (1, 1)) == [2.0, -3.0, 1.0, 0.5]


def test_a_bias_is_added_to_its_tokens() -> None:
    assert penalized(Sampling(logit_bias=((1, 9.0), (2, -1.0))), (), ()) == [2.0, 7.0, 0.0, 0.5]


def test_wishes_do_not_change_the_logits_they_are_given() -> None:
    logits = torch.tensor([[2.0, -2.0]])
    processed(logits, [Behind((0,), (1,))], Sampling(repetition_penalty=2, logit_bias=((0, 1.0),)))
    assert logits.tolist() == [[2.0, -2.0]]


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_no_temperature_is_too_small_for_limits_and_probabilities(temperature: float) -> None:
    row = torch.tensor([[-5.0, 1.0, 2.0, 9.0, 8.0, -7.0]])
    limited = Sampling(temperature=temperature, top_k=3)
    assert choose(processed(row, [Behind((), ())], limited), [5], limited) == [3]
    law = probabilities(row, limited)[0]
    assert law.isfinite().all()
    assert law.argmax() == 3
