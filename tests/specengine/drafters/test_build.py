from __future__ import annotations

import pytest

from specengine.drafters.base import DrafterSource
from specengine.drafters.build import AUTO, Recipes, build, recipes
from specengine.errors import LoadError, SettingsInvalid
from tests.specengine.tiny import ScriptedDrafts


@pytest.fixture
def known() -> Recipes:
    return recipes(lambda: ScriptedDrafts([], "draft_model"))


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("none", "none"),
        ("suffix", "suffix"),
        ("draft_model", "draft_model"),
        ("suffix+draft_model", "suffix+draft_model"),
        ("draft_model+suffix", "draft_model+suffix"),
        ("auto", AUTO),
        ("draft_model+auto", f"draft_model+{AUTO}"),
    ],
)
def test_source_has_the_name_that_was_asked_for(known: Recipes, name: str, built: str) -> None:
    assert build(name, known).name == built


@pytest.mark.parametrize("name", ["", "suffixx", "suffix+", "suffix+magic", "Suffix", " none"])
def test_unknown_name_is_refused_with_those_that_exist(known: Recipes, name: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        build(name, known)
    assert repr(name.split("+")[-1]) in caught.value.what
    assert caught.value.hint == "There are auto, none, suffix, draft_model."


def failing() -> DrafterSource:
    raise LoadError("no such file.")


def test_draft_model_is_loaded_only_when_named() -> None:
    assert build("suffix", recipes(failing)).name == "suffix"
    with pytest.raises(LoadError):
        build("draft_model", recipes(failing))


def test_nothing_is_loaded_when_another_name_is_wrong() -> None:
    with pytest.raises(SettingsInvalid):
        build("draft_model+magic", recipes(failing))
