"""What only a GPU can show; skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.drafters.base import Observer
from specengine.drafters.trained import drafts_of
from specengine.heads.head import Kind
from specengine.models.graphs import PROMPT_ROWS, GraphDecoder, run_again
from specengine.models.limbs import LimbLinear
from specengine.models.target import Target
from specengine.models.targets import Precision, load_target
from tests.specengine.heads.tiny_heads import tiny_head
from tests.specengine.tiny import save_tiny_model, tiny_architecture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU of CUDA")

TEXT = torch.randint(0, 90, (700,), generator=torch.Generator().manual_seed(0)).tolist()
SIZES = tiny_architecture(
    family="qwen2",
    hidden_size=512,
    intermediate_size=1024,
    num_heads=8,
    head_dim=64,
    vocab_size=512,
    context_len=4096,
)


@pytest.fixture(params=["bfloat16", "float32", "int8", "int4"])
def precision(request: pytest.FixtureRequest) -> Precision:
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path, architecture=SIZES)


@pytest.fixture
def target(folder: Path, precision: Precision) -> GraphDecoder:
    loaded = load_target(folder, precision, device="cuda")
    assert isinstance(loaded, GraphDecoder)
    return loaded


def cache_of(target: Target) -> KVCache:
    return KVCache(target.kv_shape, 2048)


def read(target: Target, cache: KVCache, num: int) -> None:
    target.forward(TEXT[:num], cache, num_logits=0)


def test_a_recorded_pass_computes_what_it_was_recorded_from(target: GraphDecoder) -> None:
    plain = GraphDecoder(
        target.architecture, target.weights, target.precision, step_rows=8, recorder=run_again
    )
    rows: list[torch.Tensor] = []
    for decoder in (target, plain):
        cache = cache_of(decoder)
        read(decoder, cache, PROMPT_ROWS + 40)
        rows += [decoder.forward(TEXT[300:305], cache, num_logits=5) for _ in range(2)][1:]
    torch.testing.assert_close(*rows, rtol=2e-2, atol=2e-2)


def test_it_agrees_with_the_cpu(folder: Path, target: GraphDecoder) -> None:
    cpu = load_target(folder, "float32", device="cpu")
    rows: list[torch.Tensor] = []
    for decoder in (cpu, target):
        cache = cache_of(decoder)
        read(decoder, cache, 300)
        rows.append(decoder.forward(TEXT[300:308], cache, num_logits=8).cpu())
    loose = 0.6 if target.precision == "int4" else 0.15
    torch.testing.assert_close(*rows, rtol=loose, atol=loose)


def test_plain_and_speculative_steps_have_the_same_bits(target: GraphDecoder) -> None:
    cache = cache_of(target)
    read(target, cache, 300)
    plain: list[torch.Tensor] = []
    for token_id in TEXT[300:308]:
        plain.append(target.forward([token_id], cache, num_logits=1)[0])
    for width in (2, 5, 8):
        cache.truncate(300)
        wide = target.forward(TEXT[300 : 300 + width], cache, num_logits=width)
        assert [torch.equal(*pair) for pair in zip(wide, plain, strict=False)] == [True] * width


def test_a_chain_on_the_device_is_what_single_steps_choose(target: GraphDecoder) -> None:
    chained, stepped = cache_of(target), cache_of(target)
    for cache in (chained, stepped):
        read(target, cache, 299)
    expected, pending = list[int](), TEXT[299:300]
    for _ in range(8):
        expected.append(int(target.forward(pending, stepped, num_logits=1).argmax()))
        pending = expected[-1:]
    assert target.greedy_chain(TEXT[299:300], chained, 8) == expected


@pytest.mark.parametrize("kind", ["eagle", "mtp", "draft_model"])
def test_a_recorded_draft_is_what_the_same_passes_make_unrecorded(
    target: GraphDecoder, kind: Kind
) -> None:
    head = tiny_head(kind, SIZES)
    found: list[tuple[int, ...]] = []
    for recorder in (None, run_again):  # recorded, and the same launched by the host
        drafter = drafts_of(head, target, 1, recorder=recorder).start(TEXT[:40])
        drafts: list[Draft | None] = []
        for end in (40, 43, 44):
            start = 0 if end == 40 else end - 4
            if isinstance(drafter, Observer):
                generator = torch.Generator().manual_seed(end)
                rows = torch.randn(end - 1 - start, SIZES.hidden_size, generator=generator).cuda()
                drafter.observe(dict.fromkeys(drafter.layers, rows), start)
            drafts.append(drafter.propose(TEXT[:end], 7))
        found += [draft.token_ids for draft in drafts if draft is not None]
    assert found[:3] == found[3:]
    assert max(map(len, found)) > 0


def test_products_in_integers_have_the_cpu_s_bits() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, rows = (torch.randn(*size, generator=generator) for size in ((96, 320), (40, 320)))
    linear = LimbLinear.of(weight)
    on_gpu = LimbLinear(linear.weight.cuda(), linear.scales.cuda())
    assert torch.equal(on_gpu(rows.cuda()).cpu(), linear(rows))
    assert torch.equal(on_gpu(rows[:1].cuda()).cpu(), linear(rows[:1]))
