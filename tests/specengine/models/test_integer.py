"""The int8 decoder: close to float32, the same bits in any shape and on every instruction set."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.cache.kv_cache import TILE, KVCache
from specengine.models import targets
from specengine.models.architecture import Architecture
from specengine.models.integer import IntegerDecoder, IntegerLinear, IntegerMatrix
from specengine.models.limbs import LimbLinear
from specengine.models.staging import cache_root
from specengine.models.target import Target
from specengine.models.targets import (
    AnyPrecision,
    decoder_from,
    find_kernel,
    integer_decoder_from,
    load_target,
)
from specengine.native.build import Kernel, Variant, load_kernel, usable_variants
from tests.specengine.tiny import save_tiny_model, tiny_architecture, tiny_tensors

FAMILIES = ("llama", "qwen2", "qwen3")
VARIANTS = usable_variants()
LENGTH = 2 * TILE + 40


def kernel_of(variant: Variant) -> Kernel:
    kernel = load_kernel(variant, cache_root() / "native")
    if kernel is None:
        pytest.skip(f"{variant.name} cannot be compiled here")
    return kernel


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    found = find_kernel(tiny_architecture())
    if not isinstance(found, Kernel):
        pytest.skip(found)
    return found


def decoder_of(kernel: Kernel, family: str = "llama", **changes: object) -> IntegerDecoder:
    architecture = tiny_architecture(family=family, **changes)
    return integer_decoder_from(architecture, tiny_tensors(architecture), kernel)


def some_tokens(number: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    vocab_size = tiny_architecture().vocab_size
    return torch.randint(0, vocab_size, (number,), generator=generator).tolist()


def logits_of(model: Target, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    cache = KVCache(model.kv_shape, len(token_ids))
    rows: list[torch.Tensor] = []
    for num_rows in chunks:
        part = token_ids[cache.length : cache.length + num_rows]
        rows.append(model.forward(part, cache, num_logits=len(part)))
    return torch.cat(rows)


def chunks_of(number: int, width: int) -> list[int]:
    return [min(width, number - start) for start in range(0, number, width)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("has_tied_embeddings", [True, False])
def test_logits_are_those_of_float32_but_for_rounded_weights(
    kernel: Kernel, family: str, has_tied_embeddings: bool
) -> None:
    architecture = tiny_architecture(family=family, has_tied_embeddings=has_tied_embeddings)
    rounded = {name: as_rounded(each) for name, each in tiny_tensors(architecture).items()}
    expected = decoder_from(architecture, rounded, "float32")
    ours = integer_decoder_from(architecture, rounded, kernel)
    token_ids = some_tokens(60)
    difference = logits_of(ours, token_ids, [60]) - logits_of(expected, token_ids, [60])
    spread = logits_of(expected, token_ids, [60]).std()
    # What is left is the rounding of keys and values to bfloat16.
    assert float(difference.std() / spread) < 0.01


def as_rounded(weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix whose values are whole multiples of their output's scale."""
    if weight.dim() != 2:
        return weight
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
    return (weight / scales).round() * scales


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_instruction_set_gives_the_same_bits(variant: Variant, family: str) -> None:
    token_ids = some_tokens(LENGTH)
    widths = chunks_of(LENGTH, 32)
    first = logits_of(decoder_of(kernel_of(VARIANTS[0]), family), token_ids, widths)
    own = logits_of(decoder_of(kernel_of(variant), family), token_ids, widths)
    assert torch.equal(own, first)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 16, 31, 33, 64])
def test_a_row_has_the_same_bits_in_any_width(kernel: Kernel, width: int) -> None:
    model, token_ids = decoder_of(kernel), some_tokens(LENGTH)
    expected = logits_of(model, token_ids, chunks_of(LENGTH, 32))
    assert torch.equal(logits_of(model, token_ids, chunks_of(LENGTH, width)), expected)


def test_the_number_of_threads_changes_no_bit(kernel: Kernel) -> None:
    model, token_ids = decoder_of(kernel), some_tokens(80)
    before, results = torch.get_num_threads(), list[torch.Tensor]()
    try:
        for num_threads in (1, 2, 3, 5):
            torch.set_num_threads(num_threads)
            results.append(logits_of(model, token_ids, [33, 7, 40]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


PASS_ON_TWO_THREADS = """
import torch
from specengine.cache.kv_cache import KVCache
from tests.specengine.tiny import tiny_integer_decoder

torch.set_num_threads(2)
decoder = tiny_integer_decoder()
print(int(decoder.forward([5, 6, 7], KVCache(decoder.kv_shape, 64), num_logits=1).argmax()))
"""


@pytest.mark.parametrize("limit", ["OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"])
def test_a_pass_ends_also_with_fewer_threads_than_it_asked_for(kernel: Kernel, limit: str) -> None:
    """What OpenMP gives is its own decision; whoever waits for more waits for ever."""
    value = "1" if limit == "OMP_THREAD_LIMIT" else "0"
    printed = [
        subprocess.run(
            [sys.executable, "-c", PASS_ON_TWO_THREADS],
            env={**os.environ, **limits},
            timeout=60,
            check=True,
            capture_output=True,
        ).stdout
        for limits in ({}, {limit: value})
    ]
    assert printed[0] == printed[1] != b""


def test_what_a_longer_sequence_has_left_in_the_cache_does_not_matter(kernel: Kernel) -> None:
    model, token_ids = decoder_of(kernel), some_tokens(LENGTH)
    cache = KVCache(model.kv_shape, LENGTH)
    model.forward(some_tokens(LENGTH, seed=9), cache, num_logits=0)
    cache.truncate(0)
    model.forward(token_ids[:100], cache, num_logits=0)
    warm = model.forward(token_ids[100:110], cache, num_logits=10)
    assert torch.equal(warm, logits_of(model, token_ids[:110], [110])[100:])


def test_a_copied_prefix_is_as_good_as_one_that_was_read(kernel: Kernel) -> None:
    model, token_ids = decoder_of(kernel), some_tokens(LENGTH)
    source, copied = (KVCache(model.kv_shape, LENGTH) for _ in range(2))
    model.forward(token_ids[:400], source, num_logits=0)
    copied.copy_prefix(source, 300)
    rows = model.forward(token_ids[300:320], copied, num_logits=20)
    assert torch.equal(rows, logits_of(model, token_ids[:320], [320])[300:])
    for ours, theirs in zip(copied.rows(1), source.rows(1), strict=True):
        assert torch.equal(ours[:300], theirs[:300])


@pytest.mark.parametrize(("num_rows", "num_logits"), [(1, 0), (40, 1), (70, 33), (33, 33), (64, 2)])
def test_only_the_last_rows_are_scored(kernel: Kernel, num_rows: int, num_logits: int) -> None:
    model, token_ids = decoder_of(kernel), some_tokens(num_rows)
    cache = KVCache(model.kv_shape, num_rows)
    scored = model.forward(token_ids, cache, num_logits=num_logits)
    assert torch.equal(scored, logits_of(model, token_ids, [num_rows])[num_rows - num_logits :])
    assert cache.length == num_rows


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@given(
    num_rows=st.integers(1, 8),
    num_out=st.integers(1, 70),
    num_in=st.integers(1, 300),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_products_are_exact_sums_on_every_instruction_set(
    variant: Variant, num_rows: int, num_out: int, num_in: int, seed: int
) -> None:
    kernel = kernel_of(variant)
    generator = torch.Generator().manual_seed(seed)
    matrix = IntegerMatrix.of(torch.randn(num_out, num_in, generator=generator))
    depth, columns = matrix.weights.shape[1], matrix.weights.shape[0]
    limbs = torch.randint(-128, 128, (16, depth * 64), generator=generator, dtype=torch.int8)
    laid_out = limbs.view(16, depth, 64).transpose(0, 1).contiguous()
    sums = torch.zeros(columns, 16, 16, dtype=torch.int32)
    kernel.library.specengine_multiply(
        *map(pointer, (laid_out, matrix.weights)), depth, num_rows, columns, pointer(sums)
    )
    integers = matrix.weights.permute(0, 3, 1, 2, 4).reshape(columns * 16, depth * 64)
    expected = limbs.double() @ integers.double().T
    rows = [*range(num_rows), *range(8, 8 + num_rows)]  # high limbs, then low ones
    assert torch.equal(sums.transpose(0, 1).reshape(16, -1).double()[rows], expected[rows])


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_a_product_by_itself_has_the_bits_of_the_one_by_torch(
    kernel: Kernel, num_rows: int, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight, rows = (torch.randn(size, 80, generator=generator) for size in (100, num_rows))
    bias = torch.randn(100, generator=generator) if has_bias else None
    ours = IntegerLinear.of(weight, bias, kernel)(rows)
    assert ours.shape == (num_rows, 100)
    torch.testing.assert_close(ours, LimbLinear.of(weight, bias)(rows), rtol=0, atol=1e-6)


def test_weights_are_whole_multiples_of_their_scale_and_zeros_stay_zero() -> None:
    weight = torch.tensor([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0]])
    matrix = IntegerMatrix.of(weight)
    integers = matrix.weights.permute(0, 3, 1, 2, 4).reshape(16, 64)
    assert integers[0, :3].tolist() == [127, -64, 32]
    assert not integers[1:].any()
    assert float(matrix.scales[0]) == pytest.approx(1 / 127)


@pytest.mark.parametrize(
    "sizes", [{"head_dim": 8}, {"hidden_size": 40}, {"intermediate_size": 100}, {"head_dim": 512}]
)
def test_sizes_that_the_native_pass_lacks_are_named(sizes: dict[str, int]) -> None:
    found = find_kernel(tiny_architecture(**sizes))
    assert isinstance(found, str)
    assert any(str(size) in found for size in sizes.values())


def test_auto_takes_int8_where_it_can(tmp_path: Path, kernel: Kernel) -> None:
    folder = save_tiny_model(tmp_path)
    assert load_target(folder).precision == "int8"
    assert load_target(folder, "bfloat16").precision == "bfloat16"
    assert load_target(folder, "float32").precision == "float32"


def test_without_a_kernel_torch_computes_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path)
    native = load_target(folder)
    monkeypatch.setattr(targets, "best_kernel", lambda folder: None)
    by_torch = load_target(folder)
    assert isinstance(native, IntegerDecoder)
    assert not isinstance(by_torch, IntegerDecoder)
    assert by_torch.precision == "int8"
    rows = [
        target.forward(list(TEXT), cache_of(target), num_logits=8) for target in (native, by_torch)
    ]
    torch.testing.assert_close(*rows, rtol=0.1, atol=0.1)


def test_torch_runs_what_the_native_pass_cannot(tmp_path: Path) -> None:
    architecture: Architecture = tiny_architecture(head_dim=8)
    target = load_target(save_tiny_model(tmp_path, architecture=architecture), "int8")
    assert target.precision == "int8"
    assert torch.isfinite(target.forward([1, 2], cache_of(target), num_logits=2)).all()


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_torch_gives_a_row_the_same_bits_in_every_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: AnyPrecision
) -> None:
    monkeypatch.setattr(targets, "best_kernel", lambda folder: None)
    target = load_target(save_tiny_model(tmp_path), precision)
    whole = target.forward(list(TEXT), cache_of(target), num_logits=len(TEXT))
    for width in (1, 3, 8):
        cache = cache_of(target)
        parts = [list(TEXT[start : start + width]) for start in range(0, len(TEXT), width)]
        rows = [target.forward(part, cache, num_logits=len(part)) for part in parts]
        assert torch.equal(torch.cat(rows), whole)


TEXT = range(5, 25)


def cache_of(target: Target) -> KVCache:
    return KVCache(target.kv_shape, 64)
