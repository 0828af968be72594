from __future__ import annotations

import pytest

from specengine.drafters import build as build_module
from specengine.drafters.adaptive import AdaptiveDrafts
from specengine.drafters.base import DrafterSource
from specengine.drafters.build import HEADS, Recipes, auto_parts, recipes
from specengine.drafters.pass_times import Measured, PassTimes
from specengine.drafters.suffix import SuffixDrafts
from specengine.errors import LoadError, SettingsInvalid
from tests.specengine.tiny import ScriptedDrafts

FLAT = PassTimes(Measured((1, 8), (64,), ((1.0, 1.0),)))


def build(name: str, known: Recipes) -> DrafterSource:
    return build_module.build(name, known, lambda: FLAT)


def scripted_head(kind: str) -> DrafterSource:
    return ScriptedDrafts([], kind)


@pytest.fixture
def known() -> Recipes:
    return recipes(lambda: ScriptedDrafts([], "draft_model"), scripted_head)


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("none", "none"),
        ("suffix", "suffix"),
        ("draft_model", "draft_model"),
        ("suffix+draft_model", "suffix+draft_model"),
        ("draft_model+suffix", "draft_model+suffix"),
        ("auto", "auto"),
        ("draft_model+auto", "draft_model+auto"),
        ("eagle", "eagle"),
        ("suffix+medusa", "suffix+medusa"),
    ],
)
def test_source_has_the_name_that_was_asked_for(known: Recipes, name: str, built: str) -> None:
    assert build(name, known).name == built


@pytest.mark.parametrize("name", ["", "suffixx", "suffix+", "suffix+magic", "Suffix", " none"])
def test_unknown_name_is_refused_with_those_that_exist(known: Recipes, name: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        build(name, known)
    assert repr(name.split("+")[-1]) in caught.value.what
    assert caught.value.hint == f"There are auto, none, suffix, draft_model, {', '.join(HEADS)}."


def failing() -> DrafterSource:
    raise LoadError("no such file.")


def test_draft_model_is_loaded_only_when_named() -> None:
    assert build("suffix", recipes(failing, scripted_head)).name == "suffix"
    with pytest.raises(LoadError):
        build("draft_model", recipes(failing, scripted_head))


def test_nothing_is_loaded_when_another_name_is_wrong() -> None:
    with pytest.raises(SettingsInvalid):
        build("draft_model+magic", recipes(failing, scripted_head))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("auto", ["suffix"]),
        ("auto+draft_model", ["suffix", "draft_model"]),
        ("draft_model+auto", ["draft_model", "suffix"]),
    ],
)
def test_auto_uses_all_that_it_is_joined_with_as_far_as_they_pay(
    known: Recipes, name: str, parts: list[str]
) -> None:
    source = build(name, known)
    assert isinstance(source, AdaptiveDrafts)
    assert [part.name for part in source.sources] == parts


@pytest.mark.parametrize("name", ["auto+auto", "auto+suffix", "none+suffix+draft_model+none"])
def test_no_drafter_comes_twice(known: Recipes, name: str) -> None:
    with pytest.raises(SettingsInvalid, match="different ones"):
        build(name, known)


def test_passes_are_measured_only_for_auto(known: Recipes) -> None:
    def measure() -> PassTimes:
        raise LoadError("no time.")

    assert build_module.build("suffix", known, measure).name == "suffix"
    with pytest.raises(LoadError):
        build_module.build("auto", known, measure)


def test_there_is_one_history() -> None:
    known = recipes(lambda: ScriptedDrafts([], "draft_model"), scripted_head, 4 * 2**20)
    auto, alone = build("auto", known), build("suffix", known)
    assert isinstance(auto, AdaptiveDrafts)
    assert auto.sources == (alone,)
    assert isinstance(alone, SuffixDrafts)
    assert alone.history.max_bytes == 4 * 2**20


def test_auto_takes_the_head_that_is_named_first(known: Recipes) -> None:
    assert auto_parts([]) == ("suffix",)
    parts = auto_parts(["eagle", "medusa"])
    source = build_module.build("auto", known, lambda: FLAT, parts)
    assert isinstance(source, AdaptiveDrafts)
    assert [part.name for part in source.sources] == ["suffix", "eagle"]
