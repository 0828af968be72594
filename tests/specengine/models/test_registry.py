from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specengine.errors import ConfigError, ModelUnknown
from specengine.models import registry
from specengine.models.families import can_run
from specengine.models.sources import AdapterSource, HubSource, PypiSource, parse_source

MODEL = 'source = "hf:owner/name@main"\narchitecture = "llama"\nlicence = "MIT"\n'
FIM = "[fim.a]\nprefix = 'p'\nsuffix = 's'\nmiddle = 'm'\n"


@pytest.fixture(scope="module")
def packaged() -> registry.Registry:
    return registry.load(own_file=Path("no-own-models.toml"))


def load_own(folder: Path, text: str) -> registry.Registry:
    file = folder / "models.toml"
    file.write_text(text, encoding="utf-8")
    return registry.load(own_file=file)


def test_the_base_of_the_default_model_comes_from_a_wheel_with_a_hash(
    packaged: registry.Registry,
) -> None:
    entry = packaged.get(packaged.default)
    base = entry.base
    assert base is not None
    assert isinstance(parse_source(base.source), PypiSource)
    assert base.sha256 is not None
    assert base.licence == entry.licence == "Apache-2.0"


def test_the_default_model_fills_in(packaged: registry.Registry) -> None:
    default = packaged.get(packaged.default)
    assert default.fim is not None
    assert default.base is not None
    assert default.base.fim is None


def test_the_adapter_of_the_default_model_comes_with_the_package_and_has_a_card(
    packaged: registry.Registry,
) -> None:
    source = parse_source(packaged.get(packaged.default).source)
    assert isinstance(source, AdapterSource)
    names = {file.name for file in source.path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "loss.svg"} <= names


def test_every_other_model_comes_from_a_hub(packaged: registry.Registry) -> None:
    sources = {
        name: parse_source(entry.source)
        for name, entry in packaged.models.items()
        if not name.startswith("smollm2-135m")
    }
    assert all(isinstance(source, HubSource) for source in sources.values())


def test_drafts_are_smaller_and_share_template_and_kind_of_tokenizer(
    packaged: registry.Registry,
) -> None:
    targets = [entry for entry in packaged.models.values() if entry.draft is not None]
    drafts = [packaged.get(entry.draft or "") for entry in targets]
    for target, draft in zip(targets, drafts, strict=True):
        assert (target.fim, target.tokenizer) == (draft.fim, draft.tokenizer), target.name
        assert (draft.memory_gb or 0) < (target.memory_gb or 0), target.name


def test_what_this_engine_runs_is_drafted_for_by_what_it_runs(packaged: registry.Registry) -> None:
    for entry in packaged.models.values():
        draft = packaged.get(entry.draft or entry.name)
        if can_run(entry.architecture, entry.tokenizer):
            assert can_run(draft.architecture, draft.tokenizer), entry.name


def test_every_model_says_how_much_memory_it_takes(packaged: registry.Registry) -> None:
    assert all(entry.memory_gb for entry in packaged.models.values())


def test_every_licence_is_an_spdx_expression(packaged: registry.Registry) -> None:
    licences = {entry.licence or "" for entry in packaged.models.values()}
    references = {licence for licence in licences if licence.startswith("LicenseRef-")}
    assert licences - references == {"Apache-2.0", "MIT"}
    assert all(re.fullmatch(r"LicenseRef-[A-Za-z0-9.-]+", licence) for licence in references)


def test_every_template_is_used_and_its_tokens_differ(packaged: registry.Registry) -> None:
    assert {entry.fim for entry in packaged.models.values()} - {None} == set(
        packaged.fim_templates.values()
    )
    for name, fim in packaged.fim_templates.items():
        tokens = [fim.prefix, fim.suffix, fim.middle, *fim.end]
        assert len(set(tokens)) == len(tokens), name


def test_template_is_resolved_by_its_name(packaged: registry.Registry) -> None:
    fim = packaged.get("qwen2.5-coder-7b").fim
    assert fim == registry.FimTemplate(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        end=("<|fim_pad|>", "<|file_sep|>", "<|repo_name|>"),
    )


def test_template_may_put_the_suffix_first_and_name_ends(tmp_path: Path) -> None:
    text = "[fim.a]\nprefix = 'p'\nsuffix = 's'\norder = 'suffix_first'\nend = ['e', 'f']\n"
    fim = load_own(tmp_path, text).fim_templates["a"]
    assert fim == registry.FimTemplate("p", "s", order="suffix_first", end=("e", "f"))


def test_model_without_template_has_none(packaged: registry.Registry) -> None:
    assert packaged.get("smollm2-135m").fim is None


def test_unknown_name_gets_the_nearest(packaged: registry.Registry) -> None:
    with pytest.raises(ModelUnknown, match=r"Did you mean qwen2\.5-coder-7b\?"):
        packaged.get("qwen2.5-coder-7")


def test_unknown_name_without_a_near_one_gets_all(packaged: registry.Registry) -> None:
    with pytest.raises(ModelUnknown, match=r"There are: smollm2-135m, "):
        packaged.get("zzzzzz")


def test_own_file_adds_a_model(tmp_path: Path) -> None:
    loaded = load_own(tmp_path, f"[models.mine]\n{MODEL}fim = 'qwen'\ndraft = 'smollm2-135m'\n")
    entry = loaded.get("mine")
    assert (entry.name, entry.source, entry.draft) == ("mine", "hf:owner/name@main", "smollm2-135m")
    assert entry.fim == loaded.fim_templates["qwen"]


def test_own_file_replaces_a_model_and_the_default(tmp_path: Path) -> None:
    loaded = load_own(tmp_path, f"default = 'qwen3-4b'\n[models.qwen3-4b]\n{MODEL}")
    assert (loaded.default, loaded.get("qwen3-4b").licence) == ("qwen3-4b", "MIT")


def test_own_file_may_be_empty(tmp_path: Path, packaged: registry.Registry) -> None:
    assert load_own(tmp_path, "") == packaged


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = 3", "models must be a table"),
        ("[models]\na = 3", "models.a must be a table"),
        ("[other]", "other: is no known key.* Allowed are: default, fim, models"),
        (
            f"[models.a]\n{MODEL}trust = true",
            "models.a.trust: is no known key.* Allowed are: .*fim",
        ),
        ("[models.a]\nsource = 'x'\narchitecture = 'llama'", "models.a: .*licence"),
        (f"[models.a]\n{MODEL}draft = 7", r"models.a: Expected `str \| null`, got `int`"),
        (f"[models.a]\n{MODEL}draft = 'b'", "models.a.draft: 'b' is no model.* Allowed are: smol"),
        (f"[models.a]\n{MODEL}fim = 'b'", "models.a.fim: 'b' is no template.* Allowed are: .*qwen"),
        (f"[models.a]\n{MODEL}sha256 = 'b'", "models.a.sha256 must be 64"),
        (f"[models.a]\n{MODEL.replace('llama', 'rwkv')}", "models.a: Invalid enum value 'rwkv'"),
        (f"[models.a]\n{MODEL.replace('@main', '')}", "models.a.source: .*Write hf:OWNER/NAME@"),
        (f"[models.'../a']\n{MODEL}", r"models has the name '\.\./a'.*Allowed are"),
        (f"[models.A]\n{MODEL}", "models has the name 'A'"),
        ("[fim.a]\nprefix = 'x'", "fim.a: .*suffix"),
        ("[fim.a]\nprefix = 'x'\nsuffix = 'y'", "fim.a.middle is missing.*suffix_first"),
        (f"{FIM}order = 'middle_first'", "fim.a: Invalid enum value 'middle_first'"),
        (f"{FIM}end = 'x'", "fim.a: Expected `array`, got `str`"),
        (f"[models.a]\n{MODEL}tokenizer = 'words'", "models.a: Invalid enum value 'words'"),
        (f"[models.a]\n{MODEL}memory_gb = -1", "models.a: Expected `float` > 0"),
        ("default = 'b'", "default: 'b' is no model"),
        ("default = []", r"default: \[\] is no model"),
        ("[models.a", "is no TOML"),
        ("a = " + "[" * 5000, "is no TOML"),
        ("#" * (registry.MAX_FILE_BYTES + 1), "has more than 1048576 bytes"),
    ],
)
def test_wrong_file_names_itself_the_key_and_what_is_allowed(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path / 'models.toml'}.*{words}"):
        load_own(tmp_path, text)


def test_file_that_is_no_text_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no TOML"):
        registry.load(own_file=tmp_path / "models.toml")


def test_folder_in_place_of_the_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        registry.load(own_file=tmp_path)


@pytest.mark.parametrize("name", ["My Model.Q4.gguf", "my-model.q4.GGUF"])
def test_path_to_a_gguf_file_resolves(
    packaged: registry.Registry, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    entry = packaged.resolve(str(tmp_path / name))
    assert (entry.name, entry.source) == ("my-model.q4", str(tmp_path / name))


def test_path_to_a_folder_resolves(packaged: registry.Registry, tmp_path: Path) -> None:
    entry = packaged.resolve(str(tmp_path))
    assert (entry.source, entry.architecture, entry.fim) == (str(tmp_path), None, None)


def test_relative_path_resolves_to_an_absolute_one(
    packaged: registry.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert packaged.resolve("model").source == str(tmp_path / "model")


def test_declared_name_wins_over_a_folder(
    packaged: registry.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)
    assert packaged.resolve("smollm2-135m") == packaged.get("smollm2-135m")


@pytest.mark.parametrize("text", ["./nowhere", "/no/where.gguf", "nowhere.gguf"])
def test_missing_path_is_said_to_be_missing(packaged: registry.Registry, text: str) -> None:
    with pytest.raises(ModelUnknown, match=f"There is no model at {text}"):
        packaged.resolve(text)


def test_misspelt_name_is_no_path(packaged: registry.Registry) -> None:
    with pytest.raises(ModelUnknown, match="Did you mean smollm2-135m"):
        packaged.resolve("smolm2-135m")


def test_other_file_is_no_model(packaged: registry.Registry, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelUnknown, match=r"folder or a \.gguf file"):
        packaged.resolve(str(tmp_path / "weights.bin"))


@given(st.text(max_size=30))
@example("~no such user")
@example("a" * 5000)
@example("a\0b")
def test_any_text_is_a_model_or_unknown(packaged: registry.Registry, text: str) -> None:
    try:
        packaged.resolve(text)
    except ModelUnknown:
        return
