"""A head's rows follow the text, however it came."""

from __future__ import annotations

import pytest
import torch

from specengine.heads.features import FeatureNetwork
from specengine.heads.head import Kind
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.reader import MOST_ROWS, Reader
from specengine.models.targets import product_maker
from tests.specengine.heads.tiny_heads import sizes_of, tiny_head
from tests.specengine.tiny import tiny_architecture, tiny_decoder

SIZES = tiny_architecture()
DECODER = tiny_decoder()
TEXT = torch.randint(0, 90, (40,), generator=torch.Generator().manual_seed(3)).tolist()
STREAMS = torch.randn(3, 40, SIZES.hidden_size, generator=torch.Generator().manual_seed(4))


def network_of(kind: Kind) -> FeatureNetwork:
    head = tiny_head(kind, SIZES)
    return FeatureNetwork(head, DECODER.weights.embedding, product_maker(DECODER))


def store_of(network: FeatureNetwork, num_kept: int = 2, capacity: int = 1024) -> HeadStore:
    def new_caches() -> list[HeadCache]:
        device = torch.device("cpu")
        sizes = sizes_of(SIZES)
        return [HeadCache(sizes, capacity, device, at + 1) for at in range(network.num_modules)]

    return HeadStore(new_caches, num_kept)


def show(reader: Reader, network: FeatureNetwork, start: int, end: int) -> None:
    """Show the positions from ``start`` to ``end``; the streams are the same at each call."""
    layers = network.head.layers
    reader.observe({layer: STREAMS[at, start:end] for at, layer in enumerate(layers)}, start)


def read_at_once(network: FeatureNetwork, length: int) -> torch.Tensor:
    reader = Reader(network, store_of(network), TEXT[:1])
    show(reader, network, 0, length - 1)
    row = reader.read(TEXT[:length])
    assert row is not None
    return row


@pytest.fixture(params=["eagle", "mtp"])
def network(request: pytest.FixtureRequest) -> FeatureNetwork:
    return network_of(request.param)


def test_rows_do_not_depend_on_how_the_text_came(network: FeatureNetwork) -> None:
    reader = Reader(network, store_of(network), TEXT[:1])
    row = None
    for start, end in ((0, 7), (7, 8), (8, 13), (13, 19)):
        show(reader, network, start, end)
        row = reader.read(TEXT[: end + 1])
    assert row is not None
    torch.testing.assert_close(row, read_at_once(network, 20), atol=1e-5, rtol=1e-5)


def test_a_position_that_was_not_shown_gives_no_row(network: FeatureNetwork) -> None:
    reader = Reader(network, store_of(network), TEXT[:1])
    assert reader.read(TEXT[:5]) is None
    show(reader, network, 0, 3)
    assert reader.read(TEXT[:10]) is None


def test_the_next_request_goes_on_from_the_rows_of_the_last_one(network: FeatureNetwork) -> None:
    store = store_of(network)
    first = Reader(network, store, TEXT[:20])
    show(first, network, 0, 19)
    first.read(TEXT[:20])
    first.close()
    second = Reader(network, store, TEXT[:25])
    assert second.caches[0].length == 19
    show(second, network, 19, 24)
    row = second.read(TEXT[:25])
    assert row is not None
    torch.testing.assert_close(row, read_at_once(network, 25), atol=1e-5, rtol=1e-5)


def test_rows_of_a_text_that_went_on_otherwise_are_forgotten(network: FeatureNetwork) -> None:
    """Row 9 read token 10, which is another one now; the second module's row 8 did too."""
    store = store_of(network)
    first = Reader(network, store, TEXT[:20])
    show(first, network, 0, 19)
    first.read(TEXT[:20])
    first.close()
    other = [*TEXT[:10], 5, 5, 5]
    second = Reader(network, store, other)
    assert second.caches[0].positions == list(range(9))
    assert all(
        cache.positions == list(range(9 - module)) for module, cache in enumerate(second.caches)
    )


def test_of_a_long_prompt_the_end_is_read(network: FeatureNetwork) -> None:
    num = MOST_ROWS + 50
    reader = Reader(network, store_of(network), [])
    streams = torch.zeros(num, SIZES.hidden_size)
    reader.observe(dict.fromkeys(network.head.layers, streams), 0)
    assert reader.read([1] * (num + 1)) is not None
    assert reader.caches[0].positions == list(range(50, num))


def test_a_full_cache_forgets_its_oldest_rows() -> None:
    network = network_of("eagle")
    reader = Reader(network, store_of(network, capacity=16), TEXT[:1])
    for end in range(1, 40):
        show(reader, network, end - 1, end)
        assert reader.read(TEXT[: end + 1]) is not None
        assert reader.caches[0].length <= 16
    assert reader.caches[0].positions[-1] == 38
    assert reader.caches[0].length >= 7


def test_a_store_keeps_so_many_texts_and_drops_the_oldest() -> None:
    network = network_of("eagle")
    store = store_of(network, num_kept=2)
    readers = [Reader(network, store, [number]) for number in range(3)]
    for number, reader in enumerate(readers):
        show(reader, network, 0, 3)
        reader.read([number, 1, 2, 3])
        reader.close()
    assert store.num_bytes == 2 * readers[0].caches[0].num_bytes
    lengths = [Reader(network, store, [number, 1, 2, 3]).caches[0].length for number in (1, 2)]
    assert lengths == [3, 3]
