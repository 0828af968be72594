"""What a pass leaves behind of its residual streams, in every decoder; what it may begin with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache
from specengine.models.decoder import Decoder
from specengine.models.graphs import PROMPT_ROWS, GraphDecoder, run_again
from specengine.models.integer import IntegerDecoder
from specengine.models.target import Rows, Tap, Tree
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_integer_decoder

TOKENS = torch.randint(0, 90, (400,), generator=torch.Generator().manual_seed(1)).tolist()
AnyDecoder = Decoder | IntegerDecoder


TIED = tiny_architecture(has_tied_embeddings=True)


def by_torch() -> Decoder:
    return tiny_decoder(architecture=TIED)


def graphs() -> GraphDecoder:
    like = by_torch()
    return GraphDecoder(TIED, like.weights, "float32", step_rows=8, recorder=run_again)


DECODERS: dict[str, Callable[[], AnyDecoder]] = {
    "torch": by_torch,
    "native": lambda: tiny_integer_decoder(architecture=TIED),
    "graphs": graphs,
}


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return DECODERS[request.param]()


def cache_of(decoder: AnyDecoder) -> KVCache:
    return KVCache(decoder.kv_shape, 512)


def head_of(decoder: AnyDecoder, stream: torch.Tensor) -> torch.Tensor:
    """Return the logits of a stream by float32 arithmetic."""
    sizes, weights = decoder.architecture, decoder.weights
    normed = F.rms_norm(stream, (sizes.hidden_size,), weights.final_norm, sizes.norm_eps)
    return normed @ weights.embedding.float().T  # these models tie head and embedding


def test_the_stream_behind_all_layers_is_what_is_scored(decoder: AnyDecoder) -> None:
    tap = Tap((decoder.architecture.num_layers,))
    (logits,) = decoder.forward_batch([Rows(TOKENS[:6], cache_of(decoder), 6, tap=tap)])
    assert tap.streams.shape == (1, 6, decoder.architecture.hidden_size)
    torch.testing.assert_close(head_of(decoder, tap.streams[0]), logits, atol=0.05, rtol=0.05)


def test_the_stream_before_all_layers_is_the_embedding(decoder: AnyDecoder) -> None:
    tap = Tap((0, 1))
    decoder.forward_batch([Rows(TOKENS[:6], cache_of(decoder), 0, tap=tap)])
    assert tap.streams.shape[:2] == (2, 6)
    assert torch.equal(tap.streams[0], decoder.weights.embedding[TOKENS[:6]].float())
    assert not torch.equal(tap.streams[0], tap.streams[1])


def test_a_look_changes_no_logits(decoder: AnyDecoder) -> None:
    (plain,) = decoder.forward_batch([Rows(TOKENS[:7], cache_of(decoder), 7)])
    (seen,) = decoder.forward_batch([Rows(TOKENS[:7], cache_of(decoder), 7, tap=Tap((0, 1, 2)))])
    assert torch.equal(plain, seen)


def test_a_node_of_a_tree_has_the_stream_of_its_path(decoder: AnyDecoder) -> None:
    num_layers = decoder.architecture.num_layers
    path, tree = Tap((num_layers,)), Tap((num_layers,))
    decoder.forward_batch([Rows(TOKENS[:3], cache_of(decoder), 3, tap=path)])
    ids = [TOKENS[0], 5, TOKENS[1], TOKENS[2]]
    nodes = Tree.behind(1, (-1, -1, 1))
    decoder.forward_batch([Rows(ids, cache_of(decoder), 4, nodes, tap=tree)])
    torch.testing.assert_close(tree.streams[0, [0, 2, 3]], path.streams[0])


@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_pass_may_begin_with_other_streams_than_the_tokens(name: str) -> None:
    decoder = DECODERS[name]()
    (plain,) = decoder.forward_batch([Rows(TOKENS[:5], cache_of(decoder), 5)])
    streams = decoder.weights.embedding[TOKENS[:5]].float()
    (given,) = decoder.forward_batch([Rows([0] * 5, cache_of(decoder), 5, inputs=streams)])
    assert torch.equal(plain, given)


def test_sequences_of_one_pass_keep_streams_of_their_own() -> None:
    decoder = tiny_integer_decoder()
    alone, first, second = Tap((1,)), Tap((0, 2)), Tap((1,))
    decoder.forward_batch([Rows(TOKENS[5:9], cache_of(decoder), 1, tap=alone)])
    parts = [
        Rows(TOKENS[:3], cache_of(decoder), 1, tap=first),
        Rows(TOKENS[9:11], cache_of(decoder), 1),
        Rows(TOKENS[5:9], cache_of(decoder), 1, tap=second),
    ]
    decoder.forward_batch(parts)
    assert first.streams.shape[:2] == (2, 3)
    assert torch.equal(second.streams, alone.streams)


def test_a_long_text_has_a_stream_for_every_token() -> None:
    decoder, other = graphs(), by_torch()
    ours, theirs = Tap((1, 2)), Tap((1, 2))
    num = PROMPT_ROWS + 40
    decoder.forward_batch([Rows(TOKENS[:num], cache_of(decoder), 1, tap=ours)])
    other.forward_batch([Rows(TOKENS[:num], cache_of(other), 1, tap=theirs)])
    torch.testing.assert_close(ours.streams, theirs.streams, atol=1e-4, rtol=1e-4)
