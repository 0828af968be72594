"""From a folder to drafts: ours and those of others cost time, never text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specengine.drafters.base import DrafterSource, Observer
from specengine.drafters.dflash import DFlashDrafter
from specengine.drafters.none import NoDrafts
from specengine.drafters.trained import CACHE_ROWS, drafts_of, trained_drafts
from specengine.errors import LoadError
from specengine.heads import files
from specengine.heads.head import Head, Kind
from specengine.heads.reader import MOST_ROWS
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.load import TensorReader
from specengine.models.targets import output_of, product_maker
from specengine.sampling import Sampling
from tests.specengine.drafters.tiny_sessions import (
    PREFIX,
    AnyDecoder,
    Noting,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads import tiny_checkpoints
from tests.specengine.heads.tiny_heads import tiny_head
from tests.specengine.heads.tiny_self import tiny_exit, tiny_streams
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
    tiny_tensors,
    tiny_tokenizer,
)

TINY = tiny_architecture()


def ours(head: Head) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        files.save(head, folder, files.Verifier("tiny", TINY))
        return folder

    return save


def weights() -> TensorReader:
    return TensorReader(tiny_tensors(TINY), torch.float32)


def source_from(folder: Path, decoder: AnyDecoder, num_slots: int = 2) -> DrafterSource:
    return trained_drafts(folder, decoder, tiny_tokenizer(), num_slots, weights)


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "eagle": ours(tiny_head("eagle", TINY)),
    "medusa": ours(tiny_head("medusa", TINY)),
    "mtp": ours(tiny_head("mtp", TINY)),
    "parallel": ours(tiny_head("parallel", TINY)),
    "layer_skip": ours(tiny_exit(TINY)),
    "streaming": ours(tiny_streams(TINY)),
    "others' eagle": lambda folder: tiny_checkpoints.eagle1().save(folder),
    "others' eagle3": lambda folder: tiny_checkpoints.eagle3().save(folder),
    "speculators": lambda folder: tiny_checkpoints.speculators().save(folder),
    "eagle 3.1": lambda folder: tiny_checkpoints.speculators(fc_norm=True, norm_output=True).save(
        folder
    ),
    "others' medusa": lambda folder: tiny_checkpoints.medusa().save(folder),
    "dflash": lambda folder: tiny_checkpoints.dflash().save(folder),
}


OWN_LAYERS = ("layer_skip", "streaming")
"""They run layers of the target; see their own tests."""


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return tiny_decoder() if request.param == "torch" else tiny_integer_decoder()


@pytest.mark.parametrize("name", FOLDERS)
def test_the_text_is_the_target_s_own(tmp_path: Path, decoder: AnyDecoder, name: str) -> None:
    # Drawn from the native pass, which is what is served; greedy from torch.
    temperature = 0.0 if isinstance(decoder, Decoder) else 0.8
    sampling = Sampling(temperature=temperature, seed=3)
    plain = run(session_of(models_of(decoder), NoDrafts(), sampling=sampling))
    folder = FOLDERS[name](tmp_path)
    source = Noting(source_from(folder, decoder))
    models, drafted = models_of(decoder), 0
    for prefix in (PREFIX, PREFIX, PREFIX + "urn"):  # cold, then on stored rows
        session = session_of(models, source, prefix, sampling)
        written = run(session)
        drafted += session.counts.drafted
        if prefix == PREFIX:
            assert written == plain
    assert drafted > 0


@pytest.mark.parametrize("name", FOLDERS)
def test_a_warm_request_drafts_what_a_cold_one_does(tmp_path: Path, name: str) -> None:
    """Rows that an earlier text has left are those that this text would have made."""
    decoder = tiny_decoder()
    source = Noting(source_from(FOLDERS[name](tmp_path), decoder, 1))
    first = session_of(models_of(decoder), source)
    run(first)
    cold, source.drafts = source.drafts, []
    # The target computes all again, so all is shown again.
    run(session_of(models_of(decoder), source))
    assert [draft.token_ids for draft in source.drafts] == [draft.token_ids for draft in cold]


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in OWN_LAYERS])
def test_without_hidden_states_or_room_nothing_is_drafted(tmp_path: Path, name: str) -> None:
    source = source_from(FOLDERS[name](tmp_path), tiny_decoder())
    drafter = source.start([1, 2, 3], Sampling())
    assert isinstance(drafter, Observer)
    draft = drafter.propose([1, 2, 3], 7)
    assert draft is not None
    assert len(draft) == 0
    drafter.observe(dict.fromkeys(drafter.layers, torch.zeros(2, TINY.hidden_size)), 0)
    draft = drafter.propose([1, 2, 3], 0)
    assert draft is not None
    assert len(draft) == 0


def test_a_long_text_is_read_to_its_end_by_a_block(tmp_path: Path) -> None:
    """More than fits: the oldest rows go, and drafts go on."""
    source = source_from(FOLDERS["dflash"](tmp_path), tiny_decoder(), 1)
    drafter = source.start([5], Sampling())
    assert isinstance(drafter, DFlashDrafter)
    text = [5] * 4001
    for start in range(0, 4000, 500):
        streams = {layer: torch.randn(500, TINY.hidden_size) for layer in drafter.layers}
        drafter.observe(streams, start)
        assert drafter.propose(text[: start + 501], 7) is not None
        for cache in drafter._caches:
            assert cache.positions[-1] == start + 499
            assert MOST_ROWS <= cache.length <= CACHE_ROWS


def test_a_head_for_another_width_is_refused() -> None:
    with pytest.raises(LoadError, match="rows of 64, its target has 128"):
        drafts_of(
            tiny_head("eagle", TINY),
            tiny_decoder(architecture=tiny_architecture(hidden_size=128)),
            1,
        )


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mtp", "parallel"])
def test_a_missing_tensor_and_one_too_many_are_refused(kind: Kind) -> None:
    head = tiny_head(kind, TINY)
    decoder = tiny_decoder()
    for missing in head.tensors:
        rest = {name: each for name, each in head.tensors.items() if name != missing}
        with pytest.raises(LoadError, match="lacks"):
            drafts_of(Head(**{**vars(head), "tensors": rest}), decoder, 1)
    more = {**head.tensors, "layers.9.other": torch.ones(1)}
    with pytest.raises(LoadError, match="1 tensors have no place"):
        drafts_of(Head(**{**vars(head), "tensors": more}), decoder, 1)


def test_streams_without_the_target_s_weights_are_refused() -> None:
    with pytest.raises(LoadError, match="needs the weights of its target"):
        drafts_of(tiny_streams(TINY), tiny_decoder(), 1)


@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_the_target_s_output_scores_rows_of_others(decoder: AnyDecoder, num_rows: int) -> None:
    rows = torch.randn(num_rows, TINY.hidden_size, generator=torch.Generator().manual_seed(2))
    weight = tiny_tensors(TINY)["lm_head.weight"]
    scores = output_of(decoder)(rows)
    assert scores.shape == (num_rows, TINY.vocab_size)
    torch.testing.assert_close(scores, rows @ weight.T, atol=0.15, rtol=0.05)
    if isinstance(decoder, IntegerDecoder):
        assert torch.equal(scores, product_maker(decoder)(weight, None)(rows))


def test_rows_of_an_odd_width_are_multiplied_to_the_same_bits() -> None:
    """A head's layers may have a width that the native product does not take."""
    generator = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(7, 24, generator=generator), torch.randn(7, generator=generator)
    rows = torch.randn(3, 24, generator=generator)
    product = product_maker(tiny_integer_decoder())
    padded = [torch.nn.functional.pad(each, (0, 8)) for each in (weight, rows)]
    assert torch.equal(product(weight, bias)(rows), product(padded[0], bias)(padded[1]))
