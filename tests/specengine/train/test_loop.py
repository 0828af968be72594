"""Training learns, can be interrupted at any step, and says where it stands."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest
import torch

from specengine.errors import LoadError
from specengine.train.batches import (
    BatchMaker,
    batch_of,
    measured_samples,
)
from specengine.train.corpus import Document, DocumentChooser
from specengine.train.holes import Hole
from specengine.train.loop import (
    HISTORY,
    STATE,
    Measurement,
    Plan,
    Run,
    Step,
    measure,
    read_history,
)
from specengine.train.network import Network
from specengine.train.samples import Sample, SampleLayout, SampleMaker, Sentinels, SentinelTexts
from tests.specengine.tiny import (
    END,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    tiny_architecture,
    tiny_tensors,
    tiny_tokenizer,
)

TOKENIZER = tiny_tokenizer()
SENTINELS = Sentinels.of(TOKENIZER, SentinelTexts(FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, END))
MAKER = SampleMaker(TOKENIZER, SENTINELS)
TEXT = "def f(self):\n    return self\n\n\ndef g(self):\n    x = 12\n    return self\n"
DOCUMENTS = [Document("a", "python", TEXT)]
PLAN = Plan(
    tokens=10**9,
    learning_rate=3e-3,
    warmup_steps=1,
    batch_tokens=512,
    batches_per_step=2,
    measure_seconds=1e9,
)
MEASURED: list[SampleLayout] = ["plain", "suffix_first"]


def network_of(rank: int = 4) -> Network:
    torch.manual_seed(0)
    architecture = tiny_architecture()
    return Network(
        architecture, tiny_tensors(architecture), rank, dtype=torch.float32, is_compiled=False
    )


def batches() -> BatchMaker:
    return BatchMaker(DocumentChooser(DOCUMENTS), MAKER, 0)


def run_steps(folder: Path, num_steps: int) -> Network:
    """Take so many steps in a run that begins or goes on there."""
    network = network_of()
    run = Run(network, folder, PLAN)
    goal = run.progress.step + num_steps
    run.train(batches(), {}, lambda _: None, lambda: run.progress.step >= goal)
    return network


def losses_of(folder: Path) -> list[float]:
    return [line.loss for line in read_history(folder) if isinstance(line, Step)]


def test_the_loss_falls(tmp_path: Path) -> None:
    run_steps(tmp_path, 12)
    losses = losses_of(tmp_path)
    assert losses[-1] < 0.8 * losses[0]


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = run_steps(tmp_path / "whole", 4)
    run_steps(tmp_path / "parts", 2)
    resumed = run_steps(tmp_path / "parts", 2)
    assert losses_of(tmp_path / "parts") == pytest.approx(losses_of(tmp_path / "whole"), rel=1e-3)
    for ours, expected in zip(resumed.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_steps_after_the_last_checkpoint_are_forgotten_and_done_again(tmp_path: Path) -> None:
    run_steps(tmp_path, 2)
    lost = Step(step=3, tokens=99, seconds=1.0, loss=9.0, rate=1e-3)
    with (tmp_path / HISTORY).open("ab") as file:
        file.write(msgspec.json.encode(lost) + b"\n" + b'{"type":"step","st')
    run_steps(tmp_path, 1)
    assert [line.step for line in read_history(tmp_path)] == [1, 2, 3]
    assert 9.0 not in losses_of(tmp_path)


def test_a_state_that_was_only_half_written_is_not_taken(tmp_path: Path) -> None:
    run_steps(tmp_path, 1)
    (tmp_path / f"{STATE}.new").write_bytes(b"half")
    run_steps(tmp_path, 1)
    assert len(losses_of(tmp_path)) == 2


def test_whoever_wants_to_know_is_told_of_each_checkpoint(tmp_path: Path) -> None:
    told: list[int] = []
    run = Run(network_of(), tmp_path, PLAN, on_saved=lambda: told.append(1))
    run.save()
    assert (tmp_path / STATE).exists()
    assert told == [1]


def test_a_run_of_another_rank_is_refused(tmp_path: Path) -> None:
    run_steps(tmp_path, 1)
    with pytest.raises(LoadError, match="another model or rank"):
        Run(network_of(rank=8), tmp_path, PLAN)


def test_the_rate_warms_up_and_falls_in_a_straight_line(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(PLAN, tokens=8_000, warmup_steps=3)
    Run(network_of(), tmp_path, plan).train(batches(), {}, lambda _: None)
    lines = [line for line in read_history(tmp_path) if isinstance(line, Step)]
    assert lines[0].rate == pytest.approx(plan.learning_rate / 3)
    for before, line in itertools.pairwise(lines[2:]):
        assert line.rate == pytest.approx(plan.learning_rate * (1 - before.tokens / plan.tokens))


def test_batches_depend_on_seed_and_step_alone() -> None:
    first, again, other = (
        [batch.token_ids.tolist() for batch in batches().step(step, 8, 512)] for step in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_a_batch_asks_for_the_middles_and_for_nothing_else() -> None:
    hole = Hole("line", TEXT.index("x = 12"), TEXT.index("x = 12") + 6)
    made = [MAKER.make(TEXT, hole, layout, 128, random.Random(0)) for layout in MEASURED]
    samples = [sample for sample in made if sample is not None]
    batch = batch_of(samples, 128)
    for row, sample in enumerate(samples):
        own = batch.rows == row
        places = batch.places[own] - row * 128
        learnt = list(sample.token_ids[sample.first_learnt :])
        assert batch.targets[own].tolist() == learnt
        assert [sample.token_ids[place + 1] for place in places.tolist()] == learnt
    assert batch.num_tokens == sum(len(sample.token_ids) for sample in samples)


def test_some_text_before_a_middle_is_learnt_too_but_no_mark() -> None:
    hole = Hole("line", TEXT.index("x = 12"), TEXT.index("x = 12") + 6)
    sample = MAKER.make(TEXT, hole, "suffix_first", 128, random.Random(0))
    assert sample is not None
    batch = batch_of([sample], 128, random.Random(1))
    at = (batch.places + 1).tolist()
    before = [place for place in at if place < sample.first_learnt]
    marks = {0, *(sample.token_ids.index(mark) for mark in (SENTINELS.suffix, SENTINELS.prefix))}
    assert 0 < len(before) < sample.first_learnt
    assert not marks.intersection(before)
    assert not {mark + 1 for mark in marks}.intersection(before)
    assert batch.targets.tolist() == [sample.token_ids[place] for place in at]
    assert sorted(set(batch.weights.tolist())) == [0.25, 1.0]


def test_measured_samples_ask_every_layout_for_the_same_middles() -> None:
    found = measured_samples(DOCUMENTS, MAKER, MEASURED)
    plain, filled = found["plain"], found["suffix_first"]
    assert len(plain) == len(filled) > 0
    for without, with_suffix in zip(plain, filled, strict=True):
        learnt = with_suffix.token_ids[with_suffix.first_learnt :]
        assert learnt[:-1] == without.token_ids[without.first_learnt :]
    assert found == measured_samples(DOCUMENTS, MAKER, MEASURED)


def test_a_measurement_counts_middles_that_greedy_decoding_writes(tmp_path: Path) -> None:
    network = network_of()
    rows = torch.randint(0, network.architecture.vocab_size, (1, 20))
    _, is_likeliest = network.losses(network.hidden(rows).flatten(0, 1), rows.flatten())
    with torch.no_grad():
        logits_rows = network.hidden(rows)[0]
    prefix = rows[0].tolist()
    token = likeliest(network, logits_rows[-1])
    good = Sample((*prefix, token), len(prefix), (), "plain", "line")
    bad = Sample((*prefix, (token + 1) % 100), len(prefix), (), "plain", "line")
    measured = measure(network, "plain", [good, bad], 7)
    assert measured.exact_match == 0.5
    assert measured.num_samples == 2
    assert measured.step == 7
    assert is_likeliest.shape == (20,)


def likeliest(network: Network, row: torch.Tensor) -> int:
    vocab_size = network.architecture.vocab_size
    losses, _ = network.losses(row.expand(vocab_size, -1), torch.arange(vocab_size))
    return int(losses.argmin())


def test_measurements_stand_in_the_history(tmp_path: Path) -> None:
    run = Run(network_of(), tmp_path, PLAN)
    samples = measured_samples(DOCUMENTS, MAKER, MEASURED)["plain"][:2]
    measured: dict[SampleLayout, list[Sample]] = {"plain": samples}
    run.train(batches(), measured, lambda _: None, lambda: run.progress.step >= 1)
    found = [line.step for line in read_history(tmp_path) if isinstance(line, Measurement)]
    assert found == [0, 1]
