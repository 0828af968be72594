"""Law 1 on the real model: speculation changes no bit of a logit and no token of a text.

The default run takes a sample; ``make exact`` sets ``EXACT_PROMPTS`` to 40.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from specengine.bench.workloads import load_problems
from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Counts, Limits, Models, Session
from specengine.drafters.adaptive import AdaptiveDrafts
from specengine.drafters.base import DrafterSource
from specengine.drafters.composite import CompositeDrafts
from specengine.drafters.draft_model import ModelDrafts
from specengine.drafters.none import NoDrafts
from specengine.drafters.pass_times import Measured, PassTimes
from specengine.drafters.suffix import SuffixDrafts
from specengine.drafters.trained import declared_drafts
from specengine.models import registry
from specengine.models.decoder import Decoder, Pass
from specengine.models.registry import ModelEntry
from specengine.models.target import Target
from specengine.models.targets import AnyPrecision, find_kernel, load_target
from specengine.models.tokenizer import Tokenizer
from specengine.sampling import Sampling
from tests.exact import adversaries
from tests.specengine.tiny import ScriptedDrafts, tiny_architecture, tiny_decoder

pytestmark = pytest.mark.model

NUM_PROMPTS = int(os.environ.get("EXACT_PROMPTS", "2"))
NUM_TOKENS = 64
IS_SAMPLE = NUM_PROMPTS <= 2
WIDTHS = (2, 8, 9, 32) if IS_SAMPLE else (*range(2, 17), 24, 32)
CAPACITY = 1024

GREEDY = Sampling()
SEEDED = Sampling(temperature=0.7, seed=20)


@dataclass(frozen=True)
class Bench:
    """The default model with what a session needs."""

    decoder: Target
    tokenizer: Tokenizer
    models: Models
    layout: PromptLayout
    prompts: tuple[str, ...]

    def run(self, prompt: str, source: DrafterSource, sampling: Sampling = GREEDY) -> Run:
        """Complete a prompt from a cold cache."""
        models = replace(self.models, prefixes=self.new_prefixes())
        laid_out = self.layout.lay_out(prompt, "")
        session = Session(
            models=models,
            prompt=laid_out,
            drafter=source.start(laid_out.token_ids),
            sampling=sampling,
            limits=Limits(NUM_TOKENS, 7),
        )
        text = ""
        while session.stop_reason is None:
            text += session.advance()
        written = session.written_ids
        session.close()
        assert models.prefixes.num_leased == 0
        return Run([*laid_out.token_ids, *written], text + session.finish_text(), session.counts)

    def new_prefixes(self) -> PrefixCache:
        return PrefixCache(lambda: KVCache(self.decoder.kv_shape, CAPACITY), 2)


@dataclass(frozen=True)
class Run:
    """What one completion gave."""

    token_ids: list[int]
    text: str
    counts: Counts

    @property
    def scored_from(self) -> int:
        """Return where the last rows begin, as many as were asked for; a text may end early."""
        return max(1, len(self.token_ids) - NUM_TOKENS)


def default_entry() -> ModelEntry:
    known = registry.load(own_file=Path("no-own-models.toml"))
    return known.get(known.default)


@pytest.fixture(scope="module", params=["int8", "bfloat16"])
def bench(default_model_dir: Path, request: pytest.FixtureRequest) -> Bench:
    precision: AnyPrecision = request.param
    if precision == "int8" and isinstance(reason := find_kernel(tiny_architecture()), str):
        pytest.skip(reason)
    decoder = load_target(default_model_dir, precision)
    tokenizer = Tokenizer.load(default_model_dir)
    entry = default_entry()
    prefixes = PrefixCache(lambda: KVCache(decoder.kv_shape, CAPACITY), 2)
    models = Models(decoder, tokenizer, decoder.vocab_size, prefixes)
    prompts = tuple(problem.prompt for problem in load_problems()[:NUM_PROMPTS])
    return Bench(decoder, tokenizer, models, PromptLayout(entry, tokenizer, 512), prompts)


@pytest.fixture(scope="module")
def plain_runs(bench: Bench) -> list[Run]:
    return [bench.run(prompt, NoDrafts()) for prompt in bench.prompts]


def forced_logits(model: Target, token_ids: list[int], start: int, width: int) -> torch.Tensor:
    """Return the logits from position ``start`` on, computed ``width`` rows a pass."""
    cache = KVCache(model.kv_shape, len(token_ids))
    model.forward(token_ids[:start], cache, num_logits=0)
    rows: list[torch.Tensor] = []
    for at in range(start, len(token_ids), width):
        part = token_ids[at : at + width]
        rows.append(model.forward(part, cache, num_logits=len(part)))
    return torch.cat(rows)


def differing_rows(left: torch.Tensor, right: torch.Tensor) -> int:
    return int((left != right).any(1).sum())


@pytest.mark.parametrize("width", WIDTHS)
def test_logits_are_bitwise_equal_at_every_verify_width(
    bench: Bench, plain_runs: list[Run], plain_logits: list[torch.Tensor], width: int
) -> None:
    for run, plain in zip(plain_runs, plain_logits, strict=True):
        start = len(run.token_ids) - len(plain)
        wide = forced_logits(bench.decoder, run.token_ids, start, width)
        assert differing_rows(wide, plain) == 0


@pytest.fixture(scope="module")
def plain_logits(bench: Bench, plain_runs: list[Run]) -> list[torch.Tensor]:
    return [forced_logits(bench.decoder, run.token_ids, run.scored_from, 1) for run in plain_runs]


def test_with_stock_attention_logits_depend_on_the_width(
    bench: Bench, plain_runs: list[Run]
) -> None:
    """The negative control: what the test above would say of ready-made attention calls."""
    if not isinstance(bench.decoder, Decoder):
        pytest.skip("the native pass has attention of its own")
    stock = StockDecoder(bench.decoder.architecture, bench.decoder.weights, bench.decoder.precision)
    differing = 0
    for run in plain_runs:
        start = run.scored_from
        plain = forced_logits(stock, run.token_ids, start, 1)
        differing += differing_rows(forced_logits(stock, run.token_ids, start, 8), plain)
    assert differing > 0


class StockDecoder(Decoder):
    """The same decoder with one stock attention call over exactly the keys that there are."""

    @staticmethod
    def _attended(
        index: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shared: Pass
    ) -> torch.Tensor:
        cache, num_rows = shared.cache, shared.num_rows
        cache.write(index, keys[:num_rows], values[:num_rows])
        start, cache.length = cache.length, cache.length + num_rows
        all_keys, all_values = (rows.transpose(0, 1)[None] for rows in cache.rows(index))
        cache.truncate(start)
        positions = torch.arange(start, start + num_rows)
        visible = torch.arange(start + num_rows) <= positions[:, None]
        rows = F.scaled_dot_product_attention(
            queries[:num_rows].transpose(0, 1)[None],
            all_keys,
            all_values,
            attn_mask=visible,
            enable_gqa=True,
        )
        flat = rows[0].transpose(0, 1).flatten(1)
        return F.pad(flat, (0, 0, 0, queries.shape[0] - num_rows))


def real_sources(bench: Bench) -> Iterator[DrafterSource]:
    tokens, sizes = bench.tokenizer, tiny_architecture(vocab_size=bench.decoder.vocab_size)
    yield SuffixDrafts()
    yield ModelDrafts(bench.decoder, tokens.end_ids, 2, CAPACITY)
    yield ModelDrafts(tiny_decoder(architecture=sizes), tokens.end_ids, 2, CAPACITY)
    yield CompositeDrafts([SuffixDrafts(), ModelDrafts(bench.decoder, frozenset(), 2, CAPACITY)])
    times = PassTimes(Measured((1, 8), (64,), ((9.0, 10.0),)))
    yield AdaptiveDrafts([SuffixDrafts()], times)
    model = ModelDrafts(bench.decoder, tokens.end_ids, 2, CAPACITY)
    yield AdaptiveDrafts([SuffixDrafts(), model], times)


def test_every_drafter_leaves_the_text_as_it_is(bench: Bench, plain_runs: list[Run]) -> None:
    drafted = accepted = 0
    for source in real_sources(bench):
        for prompt, plain in zip(bench.prompts, plain_runs, strict=True):
            run = bench.run(prompt, source)
            assert (run.token_ids, run.text) == (plain.token_ids, plain.text)
            drafted += run.counts.drafted
            accepted += run.counts.accepted
    assert 0 < accepted < drafted


@pytest.mark.parametrize("kind", ["medusa", "eagle", "draft_model", "parallel", "streaming"])
def test_heads_that_come_along_guess_well_and_leave_the_text_as_it_is(
    bench: Bench, plain_runs: list[Run], kind: str
) -> None:
    source = declared_drafts(default_entry(), kind, bench.decoder, bench.tokenizer, 2)
    drafted = accepted = 0
    for prompt, plain in zip(bench.prompts, plain_runs, strict=True):
        run = bench.run(prompt, source)
        assert (run.token_ids, run.text) == (plain.token_ids, plain.text)
        drafted += run.counts.drafted
        accepted += run.counts.accepted
    assert accepted > 0.1 * drafted > 0


def test_a_target_that_drafts_for_itself_is_accepted_whole(bench: Bench) -> None:
    run = bench.run(bench.prompts[0], ModelDrafts(bench.decoder, frozenset(), 2, CAPACITY))
    # Of the last draft a part may lie behind the end.
    assert run.counts.drafted - run.counts.accepted < 7
    assert run.counts.steps <= NUM_TOKENS / 8 + 2


def test_a_random_draft_model_is_almost_always_wrong(bench: Bench) -> None:
    sizes = tiny_architecture(vocab_size=bench.decoder.vocab_size)
    source = ModelDrafts(tiny_decoder(architecture=sizes), frozenset(), 2, CAPACITY)
    run = bench.run(bench.prompts[0], source)
    assert run.counts.drafted > 50
    assert run.counts.accepted < 0.02 * run.counts.drafted


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("oracle", 0.9, 1.0),
        ("liar", 0.0, 0.0),
        ("gambler", 0.1, 0.9),
        ("quitter", 0.1, 0.9),
        ("stranger", 0.9, 1.0),
    ],
)
def test_adversaries_leave_the_text_as_it_is(
    bench: Bench, plain_runs: list[Run], name: str, least: float, most: float
) -> None:
    """Acceptance shows that each adversary was the one that it claims to be."""
    vocab_size = bench.decoder.vocab_size
    drafted = accepted = 0
    for at, (prompt, plain) in enumerate(zip(bench.prompts, plain_runs, strict=True)):
        truth = plain.token_ids
        script = {
            "oracle": adversaries.oracle(truth),
            "liar": adversaries.liar(truth, vocab_size),
            "gambler": adversaries.gambler(truth, vocab_size, seed=at),
            "quitter": adversaries.quitter(truth, min(bench.tokenizer.end_ids)),
            "stranger": adversaries.stranger(truth, vocab_size),
        }[name]
        run = bench.run(prompt, ScriptedDrafts(script))
        assert (run.token_ids, run.text) == (plain.token_ids, plain.text)
        drafted += run.counts.drafted
        accepted += run.counts.accepted
    assert drafted > 0
    assert least <= accepted / drafted <= most


def test_seeded_sampling_gives_the_same_text_with_and_without_drafts(bench: Bench) -> None:
    plain = bench.run(bench.prompts[0], NoDrafts(), SEEDED)
    drafted = bench.run(
        bench.prompts[0], ScriptedDrafts(adversaries.oracle(plain.token_ids)), SEEDED
    )
    other = bench.run(bench.prompts[0], NoDrafts(), replace(SEEDED, seed=21))
    assert drafted.text == plain.text
    assert drafted.counts.accepted > 0.6 * (len(plain.token_ids) - drafted.counts.prefilled)
    assert drafted.counts.accepted > 10
    assert other.text != plain.text


@pytest.mark.parametrize("num_shared", [1, 31, 32, 33, 100])
def test_a_reused_prefix_gives_the_bits_of_a_cold_run(bench: Bench, num_shared: int) -> None:
    """The stored rows were computed as the drafts and steps of another request."""
    token_ids = bench.layout.lay_out(bench.prompts[0], "").token_ids
    cold, warm = (KVCache(bench.decoder.kv_shape, CAPACITY) for _ in range(2))
    expected = bench.decoder.forward(list(token_ids), cold, num_logits=1)
    for at in range(0, num_shared, 5):
        bench.decoder.forward(list(token_ids[at : min(at + 5, num_shared)]), warm, num_logits=1)
    found = bench.decoder.forward(list(token_ids[num_shared:]), warm, num_logits=1)
    assert torch.equal(found, expected)
