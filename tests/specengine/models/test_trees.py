"""Rows of a tree are what plain decoding of each path computes."""

from __future__ import annotations

import random

import pytest
import torch

from specengine.cache.kv_cache import TILE, KVCache
from specengine.models.graphs import GraphDecoder, run_again
from specengine.models.target import Rows, Target, Tree
from specengine.models.targets import decoder_from, find_kernel, integer_decoder_from
from specengine.native.build import Kernel
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_tensors

PARENTS = (-1, -1, 0, 0, 1, 2, 4, 4, 5)
"""Two branches of several leaves; siblings and gaps among their rows."""


def random_parents(rng: random.Random, num: int) -> tuple[int, ...]:
    return tuple(rng.randrange(-1, node) for node in range(num))


@pytest.fixture(params=["int8", "int8-qwen3", "int8-torch", "bfloat16", "float32"])
def target(request: pytest.FixtureRequest) -> Target:
    """Targets whose rows have the same bits however they are computed."""
    name: str = request.param
    family = "qwen3" if name.endswith("qwen3") else "llama"
    architecture = tiny_architecture(family=family)
    tensors = tiny_tensors(architecture)
    if name == "int8-torch":
        return decoder_from(architecture, tensors, "int8")
    if not name.startswith("int8"):
        return tiny_decoder(precision="bfloat16" if name == "bfloat16" else "float32")
    kernel = find_kernel(architecture)
    if not isinstance(kernel, Kernel):
        pytest.skip(kernel)
    return integer_decoder_from(architecture, tensors, kernel)


def tokens(num: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 90, (num,), generator=torch.Generator().manual_seed(seed)).tolist()


def cache_behind(target: Target, prompt: list[int]) -> KVCache:
    cache = KVCache(target.kv_shape, 2 * TILE)
    target.forward(prompt, cache, num_logits=0)
    return cache


def plain_rows(target: Target, prompt: list[int], path: list[int]) -> torch.Tensor:
    """Decode a path token by token; return the logits behind its last token."""
    cache = cache_behind(target, prompt)
    return [target.forward([token_id], cache, num_logits=1) for token_id in path][-1][0]


@pytest.mark.parametrize("length", [3, 100, TILE - 4, TILE])
@pytest.mark.parametrize("num_pending", [1, 3])
def test_every_node_has_the_bits_of_plain_decoding(
    target: Target, length: int, num_pending: int
) -> None:
    prompt, pending, nodes = tokens(length), tokens(num_pending, 1), tokens(len(PARENTS), 2)
    tree = Tree.behind(num_pending, PARENTS)
    rows = [*pending, *nodes]
    cache = cache_behind(target, prompt)
    logits = target.forward(rows, cache, num_logits=len(rows), tree=tree)
    for row, path in enumerate(tree.paths):
        plain = plain_rows(target, prompt, [rows[at] for at in path])
        assert torch.equal(logits[row], plain), f"row {row}"


@pytest.mark.parametrize("seed", range(6))
def test_so_has_every_node_of_random_trees(target: Target, seed: int) -> None:
    rng = random.Random(seed)
    parents = random_parents(rng, rng.randrange(1, 24))
    prompt, rows = tokens(rng.randrange(1, 300), seed), tokens(1 + len(parents), seed + 1)
    tree = Tree.behind(1, parents)
    logits = target.forward(rows, cache_behind(target, prompt), num_logits=len(rows), tree=tree)
    row = rng.randrange(len(rows))
    plain = plain_rows(target, prompt, [rows[at] for at in tree.paths[row]])
    assert torch.equal(logits[row], plain)


@pytest.mark.parametrize("length", [5, TILE - 3])
def test_an_accepted_path_goes_on_as_if_it_had_been_decoded_plainly(
    target: Target, length: int
) -> None:
    prompt, nodes = tokens(length), tokens(len(PARENTS), 2)
    cache = cache_behind(target, prompt)
    target.forward([7, *nodes], cache, num_logits=0, tree=Tree.behind(1, PARENTS))
    accepted = (0, 2, 5)
    cache.keep(length + 1, accepted)
    assert cache.length == length + 4
    plain = cache_behind(target, [*prompt, 7, *(nodes[at] for at in accepted)])
    for layer in range(target.kv_shape.num_layers):
        for ours, theirs in zip(cache.rows(layer), plain.rows(layer), strict=True):
            assert torch.equal(ours, theirs)
    step = [target.forward([3], each, num_logits=1) for each in (cache, plain)]
    assert torch.equal(*step)


def test_a_chain_is_a_tree_with_one_branch(target: Target) -> None:
    prompt, rows = tokens(40), tokens(6, 1)
    chain = target.forward(rows, cache_behind(target, prompt), num_logits=6)
    tree = Tree.behind(1, range(-1, 4))
    branch = target.forward(rows, cache_behind(target, prompt), num_logits=6, tree=tree)
    assert torch.equal(chain, branch)


def test_recorded_passes_compute_trees_too() -> None:
    plain = tiny_decoder()
    ours = GraphDecoder(
        plain.architecture, plain.weights, "float32", step_rows=16, recorder=run_again
    )
    prompt, nodes = tokens(300), tokens(len(PARENTS), 2)
    tree = Tree.behind(1, PARENTS)
    rows = [
        each.forward([7, *nodes], cache_behind(each, prompt), num_logits=10, tree=tree)
        for each in (plain, ours)
    ]
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)
    chain = ours.forward([7, 8], cache_behind(ours, prompt), num_logits=2)
    again = ours.forward(
        [7, 8], cache_behind(ours, prompt), num_logits=2, tree=Tree.behind(1, [-1])
    )
    assert torch.equal(chain, again)


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_has_in_a_batch_the_bits_it_has_alone(target: Target, seed: int) -> None:
    """Sequences of their own lengths, trees among them, read in one pass and one by one."""
    rng = random.Random(seed)
    lengths = [rng.randrange(1, 2 * TILE - 40) for _ in range(4)]
    parents = random_parents(rng, 6)
    sizes = [1, 5, 7, 9]
    trees = [None, None, Tree.behind(1, parents), None]
    together: list[Rows] = []
    alone: list[torch.Tensor] = []
    for at, (length, size, tree) in enumerate(zip(lengths, sizes, trees, strict=True)):
        prompt, rows = tokens(length, at), tokens(size, at + 9)
        together.append(Rows(rows, cache_behind(target, prompt), size, tree))
        cache = cache_behind(target, prompt)
        alone.append(target.forward(rows, cache, num_logits=size, tree=tree))
    for ours, theirs in zip(target.forward_batch(together), alone, strict=True):
        assert torch.equal(ours, theirs)
    for part, length in zip(together, lengths, strict=True):
        assert part.cache.length == length + len(part.token_ids)
