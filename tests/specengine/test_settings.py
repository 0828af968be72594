from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from specengine.errors import SettingsInvalid
from specengine.settings import OTHER_VARIABLES, EngineSettings, load_settings, settings_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "engine.toml"


def load(
    file: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
    arguments: Mapping[str, object] = MappingProxyType({}),
) -> EngineSettings:
    return load_settings(arguments, file=file, environment=environment)


def refused(
    file: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
    arguments: Mapping[str, object] = MappingProxyType({}),
) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        load(file, environment, arguments)
    return str(caught.value)


def test_nothing_given_is_all_defaults(file: Path) -> None:
    assert load(file) == EngineSettings()


def test_later_source_wins(file: Path) -> None:
    """Default, file, environment, argument: each setting below is given one source more."""
    file.write_text("slots = 5\nmax_tokens = 6\nthreads = 7\n", "utf-8")
    environment = {"SPECENGINE_MAX_TOKENS": "16", "SPECENGINE_THREADS": "17"}
    settings = load(file, environment, {"threads": 27})
    assert settings.max_waiting == EngineSettings().max_waiting
    assert settings.slots == 5
    assert settings.max_tokens == 16
    assert settings.threads == 27


def test_argument_none_is_not_given(file: Path) -> None:
    assert load(file, {"SPECENGINE_MODEL": "m"}, {"model": None, "drafter": None}).model == "m"


def test_argument_that_is_false_counts(file: Path) -> None:
    assert load(file, {"SPECENGINE_MODEL": "m"}, {"model": ""}).model == ""


def test_text_of_the_environment_becomes_numbers(file: Path) -> None:
    environment = {"SPECENGINE_IDLE_EXIT_S": "2.5", "SPECENGINE_SLOTS": "2"}
    settings = load(file, environment)
    assert (settings.idle_exit_s, settings.slots) == (2.5, 2)


@pytest.mark.parametrize("name", ["PATH", "specengine_slots", *OTHER_VARIABLES])
def test_variables_that_are_no_settings_are_left_alone(file: Path, name: str) -> None:
    assert load(file, {name: "99999"}) == EngineSettings()


def test_real_environment_is_read_by_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECENGINE_SLOTS", "3")
    assert load_settings({}, file=file).slots == 3


def test_own_file_lies_in_the_configuration_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = settings_file()
    assert path.name == "engine.toml"
    path.parent.mkdir(parents=True)
    path.write_text("slots = 9", "utf-8")
    assert load_settings({}, environment={}).slots == 9


@pytest.mark.parametrize(
    ("written", "hint"),
    [("slot", "Did you mean slots?"), ("max_tokns", "Did you mean max_tokens?")],
)
def test_unknown_name_is_refused_with_the_nearest(file: Path, written: str, hint: str) -> None:
    file.write_text(f"{written} = 1", "utf-8")
    assert refused(file) == f"{file} sets {written!r}, which does not exist. {hint}"
    file.unlink()
    in_environment = refused(file, {f"SPECENGINE_{written.upper()}": "1"})
    assert in_environment == f"the environment sets {written!r}, which does not exist. {hint}"
    as_argument = refused(file, arguments={written: 1})
    assert as_argument == f"the command line sets {written!r}, which does not exist. {hint}"


def test_name_like_no_other_is_refused_with_all_that_exist(file: Path) -> None:
    what = refused(file, {"SPECENGINE_XYZZY": "1"})
    assert all(name in what for name in EngineSettings.__struct_fields__)


RANGES = {
    "num_draft_tokens": (0, 31),
    "prompt_tokens": (16, 131_072),
    "max_tokens": (1, 8_192),
    "slots": (1, 64),
    "max_waiting": (1, 10_000),
    "idle_exit_s": (0, 1_000_000_000),
    "threads": (0, 1024),
    "history_mb": (0, 64),
}


def test_every_number_has_a_range() -> None:
    defaults = EngineSettings()
    numbers = {
        name
        for name in EngineSettings.__struct_fields__
        if isinstance(getattr(defaults, name), int | float)
    }
    assert set(RANGES) == numbers


@pytest.mark.parametrize("name", RANGES)
def test_ends_of_a_range_are_allowed_and_no_more(file: Path, name: str) -> None:
    low, high = RANGES[name]
    for value in (low, high):
        assert getattr(load(file, arguments={name: value}), name) == value
    for value in (low - 1, high + 1):
        what = refused(file, arguments={name: value})
        assert what.startswith(f"{name} is ")
        assert what.endswith(f"allowed are {low} to {high}.") or name == "idle_exit_s"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", "many"),
        ("slots", ""),
        ("slots", 1.5),
        ("idle_exit_s", "nan"),
        ("idle_exit_s", float("nan")),
        ("idle_exit_s", "inf"),
        ("precision", "float16"),
        ("precision", "FLOAT32"),
        ("model", 5),
        ("slots", [1]),
    ],
)
def test_value_of_another_kind_is_refused_by_name(file: Path, name: str, value: object) -> None:
    assert name in refused(file, arguments={name: value})


@pytest.mark.parametrize("content", [b"slots = ", b"\xff", b"slots = 1\nslots = 2", b"[slots"])
def test_broken_file_is_refused_by_its_path(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert refused(file).startswith(f"cannot read {file}: ")


def test_folder_in_place_of_the_file_is_refused(file: Path) -> None:
    file.mkdir()
    assert refused(file).startswith(f"cannot read {file}: ")


def test_table_in_the_file_is_an_unknown_name(file: Path) -> None:
    file.write_text("[engine]\nslots = 1", "utf-8")
    assert "sets 'engine'" in refused(file)


def test_context_has_room_for_prompt_healing_completion_and_draft() -> None:
    settings = EngineSettings(prompt_tokens=100, max_tokens=50, num_draft_tokens=31)
    longest_healing = 16
    assert settings.context_tokens >= 100 + longest_healing + 50 + 31
