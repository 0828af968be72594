"""Checkpoints of others, and what their networks compute."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specengine.drafters.dflash import DFlashDrafts
from specengine.drafters.feature_drafter import FeatureDrafts
from specengine.drafters.medusa import MedusaDrafts
from specengine.drafters.trained import CACHE_ROWS, trained_drafts
from specengine.errors import LoadError, ModelsIncompatible
from specengine.heads import checkpoints
from specengine.heads.dflash import DFlashNetwork
from specengine.heads.features import FeatureNetwork
from specengine.heads.head import Head
from specengine.heads.head_cache import HeadCache
from specengine.heads.medusa import MedusaNetwork
from specengine.heads.reader import MOST_ROWS
from tests.specengine.heads.tiny_checkpoints import (
    BLOCK,
    EPS,
    HIDDEN,
    MASK_ID,
    NUM_DRAFT_IDS,
    NUM_HEADS,
    Checkpoint,
    Reference,
    causal,
    dflash,
    dflash_tensors,
    eagle1,
    eagle3,
    llama_config,
    medusa,
    rms,
    speculators,
)
from tests.specengine.tiny import (
    VOCAB_SIZE,
    tiny_architecture,
    tiny_decoder,
    tiny_tensors,
    tiny_tokenizer,
    tiny_tokenizer_json,
)

TARGET = tiny_architecture()
TENSORS = tiny_tensors(TARGET)
EMBEDDING = TENSORS["model.embed_tokens.weight"].double()
FINAL_NORM = TENSORS["model.norm.weight"].double()
OUTPUT = TENSORS["lm_head.weight"].double()
NUM = 9
IDS = torch.randint(5, VOCAB_SIZE, (NUM + 1,), generator=torch.Generator().manual_seed(1))
"""Row i reads token i + 1."""
STREAMS = {
    layer: torch.randn(NUM, HIDDEN, generator=torch.Generator().manual_seed(layer))
    for layer in range(3)
}
FORMATS: dict[str, Callable[[], Checkpoint]] = {
    "eagle1": eagle1,
    "eagle3": eagle3,
    "speculators": speculators,
    "medusa": medusa,
    "dflash": dflash,
}


def load(folder: Path) -> Head:
    return checkpoints.load(folder, TARGET, tiny_tokenizer())


def feature_network(folder: Path) -> FeatureNetwork:
    source = trained_drafts(folder, tiny_decoder(), tiny_tokenizer(), 2)
    assert isinstance(source, FeatureDrafts)
    return source._network


def rows_and_logits(network: FeatureNetwork) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the network's rows on a text and one step further, and their logits."""
    cache = HeadCache(network.head.sizes, 32, torch.device("cpu"))
    positions = list(range(NUM))
    features = network.fuse(STREAMS)
    rows = network.run(IDS[1:], features, torch.arange(NUM), cache.appending(positions))
    step = network.run(IDS[:1], rows[-1:], torch.tensor([NUM]), cache.appending([NUM]))
    both = torch.cat((rows, step))
    return both, network.logits(both)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert float(theirs.abs().max()) > 0.5
    torch.testing.assert_close(ours.double(), theirs, atol=2e-4, rtol=2e-4)


def side_by_side(
    reference: Reference, layer: str, embedding: torch.Tensor, flags: dict[str, bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what EAGLE-3's equations give for the text and one step further."""
    streams = [STREAMS[at].double() for at in range(3)]
    if flags.get("fc_norm"):
        streams = [reference.rms(each, f"fc_norm.{at}.weight") for at, each in enumerate(streams)]
    joined = torch.cat(streams, 1)
    if flags.get("norm_before_fc"):
        joined = reference.rms(joined, "input_norm.weight")
    features = reference.linear(joined, "fc")
    token_ids = IDS[1:]
    made = scored = features
    for _ in range(2):
        normed = reference.rms(features, f"{layer}.hidden_norm.weight")
        entering = torch.cat(
            (reference.rms(embedding[token_ids], f"{layer}.input_layernorm.weight"), normed), 1
        )
        residual = normed if flags.get("norm_before_residual") else features
        num = len(token_ids)
        rows = reference.layer(layer, entering, residual, range(num), causal(num))
        scored = reference.rms(rows, "norm.weight")
        made = scored if flags.get("norm_output") else rows
        # The second time one more position, whose feature is what the last one was made into.
        features = torch.cat((features, made[NUM - 1 : NUM]))
        token_ids = torch.cat((token_ids, IDS[:1]))
    return made, reference.linear(scored, "lm_head")


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_before_residual": True},
        {"fc_norm": True, "norm_output": True},
        {"norm_before_fc": True},
    ],
    ids=str,
)
def test_a_speculators_head_computes_eagle_3(tmp_path: Path, flags: dict[str, bool]) -> None:
    checkpoint = speculators(**flags)
    folder = checkpoint.save(tmp_path)
    reference = Reference(checkpoint.tensors)
    rows, logits = rows_and_logits(feature_network(folder))
    embedding = reference["embed_tokens.weight"]
    expected = side_by_side(reference, "layers.0", embedding, flags)
    close(rows, expected[0])
    close(logits, expected[1])


def test_an_eagle_3_head_reads_the_target_s_embedding_and_layers(tmp_path: Path) -> None:
    checkpoint = eagle3()
    folder = checkpoint.save(tmp_path)
    head = load(folder)
    assert (head.kind, head.layers, len(head.draft_ids)) == ("eagle", (0, 1, 2), NUM_DRAFT_IDS)
    assert torch.equal(head.draft_ids, checkpoint.tensors["t2d"].nonzero().flatten())
    rows, logits = rows_and_logits(feature_network(folder))
    expected = side_by_side(Reference(checkpoint.tensors), "midlayer", EMBEDDING, {})
    close(rows, expected[0])
    close(logits, expected[1])


def test_eagle_3_reads_three_layers_when_its_files_do_not_say_which(tmp_path: Path) -> None:
    checkpoint = eagle3()
    del checkpoint.config["eagle_config"]
    folder = checkpoint.save(tmp_path)
    deep = tiny_architecture(num_layers=12)
    assert checkpoints.load(folder, deep, tiny_tokenizer()).layers == (2, 6, 9)


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_first_eagle_guesses_by_the_target_s_norm_and_output(
    tmp_path: Path, has_bias: bool
) -> None:
    checkpoint = eagle1(has_bias=has_bias)
    folder = checkpoint.save(tmp_path)
    reference = Reference(checkpoint.tensors)
    embedding = reference["embed_tokens.weight"]
    features = rms(STREAMS[2].double(), FINAL_NORM)
    token_ids = IDS[1:]
    made = torch.empty(0)
    for _ in range(2):
        stream = reference.linear(torch.cat((embedding[token_ids], features), 1), "fc")
        num = len(token_ids)
        made = reference.layer("layers.0", stream, stream, range(num), causal(num))
        features = torch.cat((features, made[NUM - 1 : NUM]))
        token_ids = torch.cat((token_ids, IDS[:1]))
    rows, logits = rows_and_logits(feature_network(folder))
    close(rows, made)
    close(logits, made @ OUTPUT.T)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_medusa_heads_read_the_normed_row_and_score_by_themselves(
    tmp_path: Path, file: str
) -> None:
    checkpoint = medusa(file)
    source = trained_drafts(checkpoint.save(tmp_path), tiny_decoder(), tiny_tokenizer(), 2)
    assert isinstance(source, MedusaDrafts)
    network: MedusaNetwork = source._network
    reference = Reference(checkpoint.tensors)
    rows = rms(STREAMS[2].double(), FINAL_NORM)
    expected = []
    for number in range(NUM_HEADS):
        change = reference.linear(rows, f"{number}.0.linear")
        expected.append(reference.linear(rows + change * torch.sigmoid(change), f"{number}.1"))
    close(network.logits(STREAMS, IDS[:NUM]), torch.stack(expected, 1))


def test_dflash_guesses_a_block_from_masks_beside_the_context(tmp_path: Path) -> None:
    checkpoint = dflash()
    source = trained_drafts(checkpoint.save(tmp_path), tiny_decoder(), tiny_tokenizer(), 2)
    assert isinstance(source, DFlashDrafts)
    network: DFlashNetwork = source._network
    assert (network.head.layers, network.block_size) == ((1, 2), BLOCK)
    caches = [HeadCache(network.head.sizes, 64, torch.device("cpu"), 0) for _ in range(2)]
    # The context comes in two pieces, as the target computes it.
    for start, end in ((0, 5), (5, NUM)):
        rows = network.context({layer: each[start:end] for layer, each in STREAMS.items()})
        network.remember(rows, range(start, end), caches)
    scores = network.guess(int(IDS[0]), NUM, caches)
    close(scores, dflash_reference(Reference(checkpoint.tensors), EMBEDDING) @ OUTPUT.T)


def dflash_reference(reference: Reference, embedding: torch.Tensor, first: int = 1) -> torch.Tensor:
    """Return the rows that are scored, from row ``first`` of the block on."""
    joined = torch.cat([STREAMS[layer].double() for layer in (1, 2)], 1)
    context = reference.rms(reference.linear(joined, "fc"), "hidden_norm.weight")
    stream = embedding[torch.tensor([int(IDS[0]), *[MASK_ID] * (BLOCK - 1)])]
    sees = torch.ones(BLOCK, NUM + BLOCK, dtype=torch.bool)
    for layer in ("layers.0", "layers.1"):
        entering = reference.rms(stream, f"{layer}.input_layernorm.weight")
        stream = reference.layer(
            layer, entering, stream, range(NUM, NUM + BLOCK), sees, context, range(NUM)
        )
    return reference.rms(stream, "norm.weight")[first:]


@pytest.mark.parametrize("guesses_at_anchor", [False, True])
def test_dflash_of_the_speculators_library_has_a_vocabulary_of_its_own(
    tmp_path: Path, guesses_at_anchor: bool
) -> None:
    checkpoint = speculators(
        architectures=["DFlashSpeculator"],
        speculators_model_type="dflash",
        transformer_layer_config=llama_config(model_type="qwen3", num_hidden_layers=2),
        aux_hidden_state_layer_ids=[1, 2],
        block_size=BLOCK,
        mask_token_id=MASK_ID,
        sample_from_anchor=guesses_at_anchor,
    )
    own = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
    checkpoint.tensors = dflash_tensors() | {name: checkpoint.tensors[name] for name in own}
    source = trained_drafts(checkpoint.save(tmp_path), tiny_decoder(), tiny_tokenizer(), 2)
    assert isinstance(source, DFlashDrafts)
    network = source._network
    assert network.head.depth == BLOCK - (not guesses_at_anchor)
    caches = [HeadCache(network.head.sizes, 64, torch.device("cpu"), 0) for _ in range(2)]
    network.remember(network.context(STREAMS), range(NUM), caches)
    reference = Reference(checkpoint.tensors)
    rows = dflash_reference(reference, reference["embed_tokens.weight"], 1 - guesses_at_anchor)
    close(network.guess(int(IDS[0]), NUM, caches), reference.linear(rows, "lm_head"))


def test_dflash_spreads_its_layers_over_the_target_when_its_files_do_not_say(
    tmp_path: Path,
) -> None:
    checkpoint = dflash()
    del checkpoint.config["dflash_config"]["target_layer_ids"]
    checkpoint.config |= {"num_target_layers": 36, "num_hidden_layers": 5, "layer_types": None}
    checkpoint.tensors = dflash_tensors(5)
    head = checkpoints.load(
        checkpoint.save(tmp_path), tiny_architecture(num_layers=36), tiny_tokenizer()
    )
    assert head.layers == (2, 10, 18, 26, 34)


def test_a_copy_of_the_target_s_embedding_takes_no_memory(tmp_path: Path) -> None:
    checkpoint = eagle1()
    checkpoint.tensors["embed_tokens.weight"] = TENSORS["model.embed_tokens.weight"].half()
    decoder = tiny_decoder()
    decoder.weights.embedding.copy_(decoder.weights.embedding.half())
    source = trained_drafts(checkpoint.save(tmp_path), decoder, tiny_tokenizer(), 2)
    assert isinstance(source, FeatureDrafts)
    assert source._network._embedding is decoder.weights.embedding


def test_half_precision_is_read(tmp_path: Path) -> None:
    checkpoint = eagle3()
    checkpoint.tensors = {
        name: each.half() if each.is_floating_point() else each
        for name, each in checkpoint.tensors.items()
    }
    logits = rows_and_logits(feature_network(checkpoint.save(tmp_path)))[1]
    expected = side_by_side(Reference(checkpoint.tensors), "midlayer", EMBEDDING, {})[1]
    close(logits, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_a_vocabulary_may_be_padded_further(tmp_path: Path, name: str) -> None:
    """Qwen2.5 has 151,936 rows in its small models, and 152,064 in its large ones."""
    checkpoint = FORMATS[name]()
    add_tokens(checkpoint, 37)
    head = load(checkpoint.save(tmp_path))
    trained_drafts(tmp_path, tiny_decoder(), tiny_tokenizer(), 2)
    assert int(head.draft_ids.max()) < VOCAB_SIZE


def add_tokens(checkpoint: Checkpoint, num: int) -> None:
    """Make a checkpoint as if its target had more tokens."""
    config = checkpoint.config.get("transformer_layer_config", checkpoint.config)
    if "vocab_size" in config:
        config["vocab_size"] += num
    for name, each in checkpoint.tensors.items():
        if each.shape[0] == VOCAB_SIZE:
            rest = torch.zeros((num, *each.shape[1:]), dtype=each.dtype)
            checkpoint.tensors[name] = torch.cat((each, rest))


@pytest.mark.parametrize("name", FORMATS)
def test_another_vocabulary_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = FORMATS[name]()
    add_tokens(checkpoint, 2000)
    with pytest.raises(LoadError, match=f"trained for {VOCAB_SIZE + 2000} tokens"):
        load(checkpoint.save(tmp_path))


def test_a_vocabulary_that_lacks_tokens_of_the_target_is_refused(tmp_path: Path) -> None:
    checkpoint = eagle3()
    checkpoint.config["vocab_size"] = VOCAB_SIZE - 1
    del checkpoint.tensors["d2t"], checkpoint.tensors["t2d"]
    with pytest.raises(LoadError, match=f"trained for {VOCAB_SIZE - 1} tokens"):
        load(checkpoint.save(tmp_path))


@pytest.mark.parametrize("name", FORMATS)
def test_another_width_is_refused(tmp_path: Path, name: str) -> None:
    folder = FORMATS[name]().save(tmp_path)
    with pytest.raises(LoadError, match=r"rows of 64, its target has 128"):
        checkpoints.load(folder, tiny_architecture(hidden_size=128), tiny_tokenizer())


@pytest.mark.parametrize("name", ["eagle3", "speculators", "dflash"])
def test_layers_that_the_target_lacks_are_refused(tmp_path: Path, name: str) -> None:
    folder = FORMATS[name]().save(tmp_path)
    with pytest.raises(LoadError, match=r"reads .*layers.* its target has 1"):
        checkpoints.load(folder, tiny_architecture(num_layers=1), tiny_tokenizer())


@pytest.mark.parametrize("name", FORMATS)
def test_other_tokens_are_refused(tmp_path: Path, name: str) -> None:
    checkpoint = FORMATS[name]()
    checkpoint.beside["tokenizer.json"] = tiny_tokenizer_json()
    assert load(checkpoint.save(tmp_path / "same"))
    content = json.loads(tiny_tokenizer_json())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    checkpoint.beside["tokenizer.json"] = json.dumps(content).encode()
    with pytest.raises(ModelsIncompatible, match=r"different tokens: token \d+ is b'[AB]'"):
        load(checkpoint.save(tmp_path / "other"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_tensor_is_refused_before_any_request(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name]()
    for number, missing in enumerate(sorted(whole.tensors)):
        if missing in ("t2d", "embed_tokens.weight", "fc.bias"):
            continue
        checkpoint = FORMATS[name]()
        del checkpoint.tensors[missing]
        folder = checkpoint.save(tmp_path / str(number))
        with pytest.raises(LoadError):
            trained_drafts(folder, tiny_decoder(), tiny_tokenizer(), 2)


@pytest.mark.parametrize("name", FORMATS)
def test_a_tensor_that_no_network_asks_for_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = FORMATS[name]()
    extra = "3.0.other.weight" if name == "medusa" else "layers.0.self_attn.gate.weight"
    checkpoint.tensors[extra] = torch.ones(HIDDEN, HIDDEN)
    with pytest.raises(LoadError):
        trained_drafts(checkpoint.save(tmp_path), tiny_decoder(), tiny_tokenizer(), 2)


@pytest.mark.parametrize("make", [eagle1, speculators])
def test_tensors_that_can_be_derived_are_passed_over(
    tmp_path: Path, make: Callable[[], Checkpoint]
) -> None:
    checkpoint = make()
    checkpoint.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    checkpoint.tensors["verifier_norm.weight"] = torch.ones(HIDDEN)
    trained_drafts(checkpoint.save(tmp_path), tiny_decoder(), tiny_tokenizer(), 2)


@pytest.mark.parametrize("name", FORMATS)
def test_half_a_file_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = FORMATS[name]()
    checkpoint.save(tmp_path)
    path = tmp_path / checkpoint.file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(LoadError, match=checkpoint.file):
        load(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_without_weights_or_with_half_a_config_is_refused(
    tmp_path: Path, name: str
) -> None:
    checkpoint = FORMATS[name]()
    checkpoint.save(tmp_path)
    (tmp_path / checkpoint.file).unlink()
    with pytest.raises(LoadError, match=r"weights|cannot be read"):
        load(tmp_path)
    config = tmp_path / "config.json"
    config.write_bytes(config.read_bytes()[:-40])
    with pytest.raises(LoadError, match=r"config\.json"):
        load(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


@pytest.mark.parametrize(
    ("make", "file"), [(eagle1, "pytorch_model.bin"), (medusa, "medusa_lm_head.pt")]
)
def test_nothing_in_a_pickle_is_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Checkpoint],
    file: str,
) -> None:
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "made"))
    folder = make().save(tmp_path / "head")
    torch.save({"fc.weight": Evil()}, folder / file)
    with pytest.raises(LoadError, match="cannot be read as numbers"):
        load(folder)
    (folder / file).write_bytes(pickle.dumps({"fc.weight": Evil()}))
    with pytest.raises(LoadError, match="cannot be read as numbers"):
        load(folder)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content", [{}, [1, 2], {"fc.weight": 3}, {3: torch.ones(2)}, {"x": torch.ones(2).to_sparse()}]
)
def test_a_pickle_of_other_things_is_refused(tmp_path: Path, content: object) -> None:
    folder = eagle1().save(tmp_path)
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(LoadError, match="is no mapping of names to tensors"):
        load(folder)


def test_weights_are_read_from_safetensors_where_there_are_both(tmp_path: Path) -> None:
    checkpoint = eagle1()
    folder = checkpoint.save(tmp_path)
    save_file(checkpoint.tensors, folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"damaged")
    assert load(folder).kind == "eagle1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_hidden_size": 128}, "rows of 64 for a target of 128"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"num_key_value_heads": 3}, "cannot be grouped"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "one layer of its target only"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
    ],
)
def test_what_no_network_here_can_do_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    checkpoint = eagle3()
    checkpoint.config |= change
    with pytest.raises(LoadError, match=message):
        load(checkpoint.save(tmp_path))


def test_a_model_that_is_no_head_is_refused(tmp_path: Path) -> None:
    Checkpoint(llama_config(), TENSORS).save(tmp_path)
    with pytest.raises(LoadError, match="no head of a known format"):
        load(tmp_path)


@pytest.mark.parametrize("make", [eagle1, eagle3, dflash])
def test_fewer_layers_than_the_config_promises_are_refused(
    tmp_path: Path, make: Callable[[], Checkpoint]
) -> None:
    checkpoint = make()
    checkpoint.config |= {"num_hidden_layers": 3, "layer_types": None}
    with pytest.raises(LoadError, match=r"promises 3 layers, but the weights have [12]"):
        load(checkpoint.save(tmp_path))


def test_two_residual_blocks_are_refused(tmp_path: Path) -> None:
    checkpoint = medusa()
    checkpoint.config["medusa_num_layers"] = 2
    with pytest.raises(LoadError, match="2 residual blocks"):
        load(checkpoint.save(tmp_path))


def test_a_mask_that_the_target_cannot_embed_is_refused(tmp_path: Path) -> None:
    checkpoint = dflash()
    checkpoint.config["dflash_config"]["mask_token_id"] = VOCAB_SIZE
    folder = checkpoint.save(tmp_path)
    with pytest.raises(LoadError, match=f"masks with token {VOCAB_SIZE}"):
        trained_drafts(folder, tiny_decoder(), tiny_tokenizer(), 2)


def test_a_head_s_tensors_are_let_go_when_its_products_are_made(tmp_path: Path) -> None:
    network = feature_network(eagle3().save(tmp_path))
    assert not network.head.tensors


def test_a_text_s_rows_fit_what_a_reader_takes_at_once() -> None:
    assert 2 * MOST_ROWS <= CACHE_ROWS


def test_the_reference_has_the_eps_of_the_checkpoints() -> None:
    assert EPS == llama_config()["rms_norm_eps"] == TARGET.norm_eps
