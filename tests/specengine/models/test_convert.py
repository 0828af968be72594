from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specengine.errors import LoadError
from specengine.models import convert, gguf_file, staging
from specengine.models.convert import check_model, ensure_model, list_models
from specengine.models.registry import ModelEntry, Registry
from specengine.models.tokenizer import Tokenizer
from tests.specengine.models.tiny_gguf import HEADS, LAYERS, TinyGguf


@pytest.fixture
def entry(gguf_path: Path) -> ModelEntry:
    return ModelEntry(name="tiny", source=str(gguf_path))


def entry_of(path: Path) -> ModelEntry:
    return ModelEntry(name="tiny", source=str(path))


def converted_weights(tiny: TinyGguf, folder: Path) -> dict[str, torch.Tensor]:
    made = ensure_model(entry_of(tiny.write(folder / "tiny.gguf")), cache_dir=folder)
    return load_file(made / "model.safetensors")


def test_weights_are_those_before_llama_cpp_reordered_them(tmp_path: Path) -> None:
    tiny = TinyGguf()
    weights = converted_weights(tiny, tmp_path)
    assert weights.keys() == tiny.hub_weights.keys()
    for name, original in tiny.hub_weights.items():
        assert torch.equal(weights[name], torch.tensor(original).to(torch.bfloat16)), name


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_weights_keep_their_order(tmp_path: Path, architecture: str) -> None:
    tiny = TinyGguf(architecture=architecture)
    name = "model.layers.1.self_attn.q_proj.weight"
    weights = converted_weights(tiny, tmp_path)
    assert torch.equal(weights[name], torch.tensor(tiny.hub_weights[name]).to(torch.bfloat16))


def test_quantised_weights_are_near_the_original(tmp_path: Path) -> None:
    tiny = TinyGguf(quantised=True)
    for name, weight in converted_weights(tiny, tmp_path).items():
        assert np.allclose(weight.float().numpy(), tiny.hub_weights[name], atol=0.05), name


def test_large_matrix_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "ROWS_AT_ONCE", 5)
    tiny = TinyGguf()
    for name, weight in converted_weights(tiny, tmp_path).items():
        assert torch.equal(weight, torch.tensor(tiny.hub_weights[name]).to(torch.bfloat16)), name


def test_config_says_what_the_metadata_says(entry: ModelEntry, tmp_path: Path) -> None:
    config = json.loads((ensure_model(entry, cache_dir=tmp_path) / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    assert {key: config[key] for key in expected} == expected


def test_output_matrix_unties_the_embeddings(tmp_path: Path) -> None:
    tiny = TinyGguf(extra_tensors={"output.weight": np.ones((266, 32), np.float32)})
    made = ensure_model(entry_of(tiny.write(tmp_path / "a.gguf")), cache_dir=tmp_path)
    assert json.loads((made / "config.json").read_text())["tie_word_embeddings"] is False


def test_converted_tokenizer_loads(entry: ModelEntry, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(ensure_model(entry, cache_dir=tmp_path))
    assert tokenizer.decode(tokenizer.encode("def f(): 'é'")) == "def f(): 'é'"


def test_provenance_names_source_and_hash(entry: ModelEntry, tmp_path: Path) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    provenance = json.loads((made / "specengine.json").read_text())
    assert provenance["source"] == entry.source
    assert provenance["sha256"] == staging.hash_file(Path(entry.source))
    weights = provenance["files"]["model.safetensors"]
    assert weights["sha256"] == staging.hash_file(made / "model.safetensors")


def test_second_call_reuses_the_folder(
    entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    monkeypatch.setattr(convert, "_make", pytest.fail)
    assert ensure_model(entry, cache_dir=tmp_path) == made


def test_cut_weights_are_made_anew(entry: ModelEntry, tmp_path: Path) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    whole = (made / "model.safetensors").read_bytes()
    (made / "model.safetensors").write_bytes(whole[:-1])
    assert (ensure_model(entry, cache_dir=tmp_path) / "model.safetensors").read_bytes() == whole


def test_another_converter_makes_another_folder(
    entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    monkeypatch.setattr(convert, "CONVERTER", convert.CONVERTER + 1)
    assert ensure_model(entry, cache_dir=tmp_path) != made


def test_changed_gguf_file_is_converted_again(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "a.gguf")
    made = ensure_model(entry_of(path), cache_dir=tmp_path)
    os.utime(path, ns=(1, 1))
    assert ensure_model(entry_of(path), cache_dir=tmp_path) != made


def test_progress_rises_to_one(entry: ModelEntry, tmp_path: Path) -> None:
    seen: list[float] = []
    ensure_model(entry, lambda fraction, _: seen.append(fraction), cache_dir=tmp_path)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_environment_chooses_the_cache(
    entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECENGINE_CACHE", str(tmp_path / "elsewhere"))
    assert ensure_model(entry).parent == tmp_path / "elsewhere" / "models"


def test_folder_is_used_where_it_lies(entry: ModelEntry, tmp_path: Path) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    assert ensure_model(entry_of(made), cache_dir=tmp_path / "unused") == made
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_folder_is_refused(entry: ModelEntry, tmp_path: Path, name: str) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    (made / name).unlink()
    with pytest.raises(LoadError, match="is no usable model"):
        ensure_model(entry_of(made))


def test_missing_shard_is_named(entry: ModelEntry, tmp_path: Path) -> None:
    made = ensure_model(entry, cache_dir=tmp_path)
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LoadError, match=r"model-00002-of-00002\.safetensors is missing"):
        ensure_model(entry_of(made))


@pytest.mark.parametrize("name", ["nowhere", "nowhere.gguf"])
def test_missing_path_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadError, match=rf"at {tmp_path / name}"):
        ensure_model(entry_of(tmp_path / name), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("tiny", "reason"),
    [
        (TinyGguf(architecture="mamba"), "architecture 'mamba'"),
        (TinyGguf(pre="unheard-of"), "pre-tokenizer 'unheard-of'"),
        (TinyGguf(tokenizer_model="llama"), "no byte-level BPE"),
        (TinyGguf(left_out="blk.1.ffn_up.weight"), "up_proj"),
        (TinyGguf(left_out="output_norm.weight"), "final norm"),
        (TinyGguf(left_out="token_embd.weight"), "embed_tokens"),
        (TinyGguf(extra_tensors={"rope_freqs.weight": np.ones(4, np.float32)}), "rope_freqs"),
        (TinyGguf(extra_tensors={"blk.0.ffn_up.bias": np.ones(64, np.float32)}), "ffn_up.bias"),
        (TinyGguf(extra_numbers={"llama.expert_count": 8}), "mixture of experts"),
        (TinyGguf(extra_numbers={"llama.rope.dimension_count": 4}), "part of each head"),
        (TinyGguf(extra_numbers={"llama.attention.key_length": 16}), "q_proj"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_half_understood_is_refused(tmp_path: Path, tiny: TinyGguf, reason: str) -> None:
    path = tiny.write(tmp_path / "a.gguf")
    with pytest.raises(LoadError, match=reason):
        ensure_model(entry_of(path), cache_dir=tmp_path)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("kept", [0, 3, 30, 4_000, 40_000])
def test_cut_gguf_file_is_a_load_error(gguf_path: Path, tmp_path: Path, kept: int) -> None:
    (tmp_path / "cut.gguf").write_bytes(gguf_path.read_bytes()[:kept])
    with pytest.raises(LoadError):
        ensure_model(entry_of(tmp_path / "cut.gguf"), cache_dir=tmp_path)
    assert left_behind(tmp_path) == []


def test_full_disk_leaves_nothing(
    entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> dict[str, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "_convert_gguf", fail)
    with pytest.raises(LoadError, match=r"full \(\d+ bytes free\)"):
        ensure_model(entry, cache_dir=tmp_path)
    assert left_behind(tmp_path) == []


def test_cache_that_is_a_file_is_a_load_error(entry: ModelEntry, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="cannot be used"):
        ensure_model(entry, cache_dir=tmp_path / "file")


def test_list_says_what_is_there(entry: ModelEntry, tmp_path: Path) -> None:
    absent = ModelEntry(name="absent", source="hf:a/b@main", licence="MIT")
    registry = Registry(default="tiny", models={"tiny": entry, "absent": absent}, fim_templates={})
    made = ensure_model(entry, cache_dir=tmp_path)
    here, away = list_models(registry, cache_dir=tmp_path)
    assert (here.folder, away.folder) == (made, None)
    assert here.size_bytes > 0 == away.size_bytes


@pytest.mark.parametrize(
    "source",
    [
        *("/nonexistent/x.gguf", "/nonexistent/x", "~nosuchuser/x", "~nosuchuser/x.gguf"),
        *("a\0b", "a\0b.gguf", "~a\0b/x", "x" * 5000, "x" * 5000 + ".gguf"),
    ],
)
def test_list_goes_on_after_a_path_that_is_none(
    entry: ModelEntry, tmp_path: Path, source: str
) -> None:
    stale = ModelEntry(name="stale", source=source)
    registry = Registry(default="tiny", models={"stale": stale, "tiny": entry}, fim_templates={})
    away, _ = list_models(registry, cache_dir=tmp_path)
    assert (away.name, away.folder, away.size_bytes) == ("stale", None, 0)


@pytest.mark.parametrize("source", ["/nonexistent/x.gguf", "~nosuchuser/x", "a\0b.gguf"])
def test_path_that_is_none_is_a_load_error(tmp_path: Path, source: str) -> None:
    for use in (check_model, ensure_model):
        with pytest.raises(LoadError, match="There is no"):
            use(ModelEntry(name="stale", source=source), cache_dir=tmp_path)


def test_check_finds_no_problem(entry: ModelEntry, tmp_path: Path) -> None:
    ensure_model(entry, cache_dir=tmp_path)
    assert check_model(entry, cache_dir=tmp_path).problems == []


def test_check_finds_a_changed_byte(entry: ModelEntry, tmp_path: Path) -> None:
    weights = ensure_model(entry, cache_dir=tmp_path) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    problems = check_model(entry, cache_dir=tmp_path).problems
    assert problems == ["model.safetensors has changed"]


def test_check_of_an_absent_model_says_how_to_fetch_it(entry: ModelEntry, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="models pull tiny"):
        check_model(entry, cache_dir=tmp_path)


def test_hub_model_is_linked_and_then_needs_no_hub(
    entry: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "c0ffee"
    shutil.copytree(ensure_model(entry, cache_dir=tmp_path), snapshot)
    (snapshot / "specengine.json").unlink()
    hub_entry = ModelEntry(name="hub", source="hf:a/b@main")
    monkeypatch.setattr(convert, "fetch_snapshot", lambda source, on_progress: snapshot)
    made = ensure_model(hub_entry, cache_dir=tmp_path)
    monkeypatch.setattr(convert, "fetch_snapshot", pytest.fail)
    assert ensure_model(hub_entry, cache_dir=tmp_path) == made
    assert json.loads((made / "specengine.json").read_text())["sha256"] == "c0ffee"
    assert check_model(hub_entry, cache_dir=tmp_path).problems == []


def left_behind(cache: Path) -> list[Path]:
    models = cache / "models"
    return [path for path in models.glob("*") if path.suffix != ".lock"] if models.exists() else []


@pytest.mark.model
def test_default_model_is_whole(default_model_dir: Path) -> None:
    weights = load_file(default_model_dir / "model.safetensors")
    assert len(weights) == 272
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert tuple(weights["model.embed_tokens.weight"].shape) == (49_152, 576)
