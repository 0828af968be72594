from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.drafters.pass_times import (
    CONTEXTS,
    MEMORY,
    PROBE_MS,
    Measured,
    PassTimes,
    known_or_measured,
    measure,
)
from specengine.models.target import Tree
from tests.specengine.tiny import tiny_decoder, tiny_integer_decoder

MEASURED = Measured((1, 4, 8), (100, 1100), ((7.0, 8.0, 12.0), (9.0, 12.0, 22.0)))


class Clock:
    """Each look at it moves it on."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@pytest.mark.parametrize(
    ("num_rows", "context", "ms"),
    [(1, 100, 7), (8, 100, 12), (6, 100, 10), (1, 600, 8), (8, 2100, 32), (16, 100, 20)],
)
def test_times_lie_on_lines_through_what_was_measured(
    num_rows: int, context: int, ms: float
) -> None:
    assert PassTimes(MEASURED).ms(num_rows, context) == pytest.approx(ms)


def test_drafted_rows_cost_what_they_add_and_fewer_never_more() -> None:
    dented = Measured((1, 2, 4), (64,), ((10.0, 9.0, 12.0),))
    assert PassTimes(dented).extra_ms(3, 64) == pytest.approx([0, 0, 1.5, 3])
    interrupted = Measured((1, 2, 4), (64,), ((7.0, 12.0, 9.0),))
    assert PassTimes(interrupted).extra_ms(3, 64) == pytest.approx([0, 2, 2, 2])
    assert PassTimes(MEASURED).extra_ms(7, 100) == pytest.approx([0, 1 / 3, 2 / 3, 1, 2, 3, 4, 5])


def test_a_width_that_became_dearer_is_corrected() -> None:
    times = PassTimes(MEASURED)
    for _ in range(200):
        times.note(1, 100, 7.0)
        times.note(8, 100, 18.0)
    assert times.ms(8, 100) == pytest.approx(18.0, rel=0.02)
    assert times.ms(1, 100) == pytest.approx(7.0)


def test_a_slower_machine_changes_no_ratio() -> None:
    times = PassTimes(MEASURED)
    for _ in range(200):
        for rows, ms in ((1, 7.0), (4, 8.0), (8, 12.0)):
            times.note(rows, 100, 3 * ms)
    assert times.ms(8, 100) / times.ms(1, 100) == pytest.approx(12 / 7)


def test_one_interrupted_pass_moves_little() -> None:
    times = PassTimes(MEASURED)
    for _ in range(100):
        times.note(1, 100, 7.0)
        times.note(8, 100, 12.0)
    times.note(8, 100, 5000.0)
    assert times.ms(8, 100) < 12.5


def test_a_width_that_nobody_has_seen_goes_by_a_narrower_one() -> None:
    times = PassTimes(MEASURED)
    for _ in range(200):
        times.note(1, 100, 7.0)
        times.note(4, 100, 12.0)
    assert times.ms(8, 100) == pytest.approx(18.0, rel=0.02)


def test_rows_beyond_what_was_measured_are_not_noted() -> None:
    times = PassTimes(MEASURED)
    times.note(32, 100, 1.0)
    assert times.ms(8, 100) == pytest.approx(12.0)


def test_measuring_leaves_the_cache_empty() -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 1280)
    measured = measure(decoder, cache, (1, 2, 8))
    assert cache.length == 0
    assert measured.widths == (1, 2, 8)
    assert measured.contexts == CONTEXTS


def test_a_short_cache_is_measured_at_one_length() -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 256)
    assert measure(decoder, cache, (1, 8)).contexts == CONTEXTS[:1]


def test_where_passes_are_slow_only_the_ends_are_measured() -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 1280)
    clock = Clock(PROBE_MS / 1000)
    measured = measure(decoder, cache, (1, 2, 4, 8), clock)
    # The start, two looks for each of two passes of two widths, and one that shows the time.
    assert clock.now / clock.step_s <= 10
    assert measured.contexts == CONTEXTS[:1]
    assert measured.ms == ((PROBE_MS,) * 4,)


def test_the_first_pass_of_a_shape_does_not_count() -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 128)
    clock = Clock(0.0)
    forward, seen = decoder.forward, set[int]()

    def slow_at_first(
        token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        clock.now += 0.001 if len(token_ids) in seen else 5.0
        seen.add(len(token_ids))
        return forward(token_ids, cache, num_logits=num_logits, tree=tree)

    decoder.forward = slow_at_first
    assert measure(decoder, cache, (1, 8), clock).ms == ((pytest.approx(1), pytest.approx(1)),)


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 1280)
    first = known_or_measured(decoder, cache, 8, tmp_path / "passes")
    again = known_or_measured(decoder, cache, 8, tmp_path / "passes")
    wider = known_or_measured(decoder, cache, 16, tmp_path / "passes")
    assert again.measured == first.measured
    assert wider.measured.widths == (1, 2, 4, 8, 16)
    assert len(list((tmp_path / "passes").iterdir())) == 2


def test_what_another_build_has_measured_is_not_believed(tmp_path: Path) -> None:
    decoder = tiny_integer_decoder()
    cache = KVCache(decoder.kv_shape, 256)
    for library in ("pass-avx2-1.so", "pass-avx2-2.so"):
        decoder.kernel = dataclasses.replace(decoder.kernel, file=library)
        known_or_measured(decoder, cache, 8, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"no json",
        b"{}",
        b'{"widths":[1,8],"contexts":[64],"ms":[[1.0]]}',
        b'{"widths":[1,8],"contexts":[64],"ms":[[1.0,-1.0]]}',
        b'{"widths":[],"contexts":[],"ms":[]}',
    ],
)
def test_a_damaged_file_is_measured_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 1280)
    known_or_measured(decoder, cache, 8, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert known_or_measured(decoder, cache, 8, tmp_path).measured.widths == (1, 2, 4, 8)
    assert "measured again" in caplog.text
    assert file.read_bytes() != content


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "passes").write_text("a file")
    decoder = tiny_decoder()
    cache = KVCache(decoder.kv_shape, 1280)
    assert known_or_measured(decoder, cache, 8, tmp_path / "passes").ms(1, 64) > 0
    assert "cannot" in caplog.text


def test_times_that_are_no_longer_true_are_measured_anew_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "times.json"
    file.write_text("{}")
    times = PassTimes(MEASURED, file)
    for _ in range(int(MEMORY) + 1):
        times.note(1, 100, 7.0)
        times.note(8, 100, 14.0)
    assert file.exists()
    for _ in range(10 * int(MEMORY)):
        times.note(8, 100, 24.0)
    assert not file.exists()
    assert "measured anew at the next start" in caplog.text
