"""Random numbers by seed, position and purpose."""

from __future__ import annotations

import pytest
import torch

from specengine.noise import Stream, draw, gumbel, uniform


def test_the_same_place_has_the_same_numbers_whatever_was_drawn_before() -> None:
    first = uniform(8, 3, 5, Stream.TOKEN)
    uniform(100, 3, 6, Stream.TOKEN)
    assert torch.equal(uniform(8, 3, 5, Stream.TOKEN), first)


def test_seeds_positions_purposes_and_turns_have_numbers_of_their_own() -> None:
    places = [
        (seed, at, stream, turn)
        for seed in (0, 1)
        for at in (0, 1)
        for stream in Stream
        for turn in (0, 1)
    ]
    numbers = {float(uniform(1, *place)) for place in places}
    assert len(numbers) == len(places)


def test_numbers_are_uniform() -> None:
    numbers = uniform(100_000, 1, 2, Stream.COIN)
    counts = torch.histc(numbers, 10, 0, 1)
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 30
    assert 0 <= float(numbers.min()) < float(numbers.max()) < 1


def test_seeds_are_taken_modulo_two_to_the_power_of_64() -> None:
    assert torch.equal(uniform(2, -1, 0, Stream.REST), uniform(2, 2**64 - 1, 0, Stream.REST))


def test_noise_is_finite() -> None:
    assert torch.isfinite(gumbel(100_000, 7, 7, Stream.TOKEN)).all()


@pytest.mark.parametrize("turn", [0, 3])
def test_an_id_is_drawn_as_often_as_its_weight_says(turn: int) -> None:
    weights = torch.tensor([0.0, 3.0, 1.0, 0.0])
    drawn = [draw(weights, 9, at, Stream.REST, turn) for at in range(4000)]
    assert set(drawn) == {1, 2}
    assert drawn.count(1) == pytest.approx(3000, abs=120)
