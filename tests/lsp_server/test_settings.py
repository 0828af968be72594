"""Facts about what a user can set."""

from dataclasses import fields, is_dataclass

import pytest

from lsp_server import settings as module
from lsp_server.settings import MINIMUM, Settings, read_settings


def test_nothing_means_defaults():
    assert read_settings(None) == (Settings(), [])
    assert read_settings({}) == (Settings(), [])


def test_camel_case_and_section_name_are_accepted():
    settings, problems = read_settings(
        {
            "specengine": {
                "completion": {"maxTokens": 7, "temperature": 1, "ignoredFiles": ["*.txt"]},
                "engine": {"idle_exit_s": 5},
                "trace": {"enabled": False},
            }
        }
    )
    assert problems == []
    assert settings.completion.max_tokens == 7
    assert settings.completion.temperature == 1.0
    assert settings.completion.ignored_files == ("*.txt",)
    assert settings.engine.idle_exit_s == 5.0
    assert not settings.trace.enabled


def test_unknown_key_names_the_nearest():
    settings, problems = read_settings({"completion": {"maxTokn": 7}})
    assert settings == Settings()
    assert problems == ["unknown setting completion.maxTokn; did you mean maxTokens?"]


def test_key_like_no_other_names_them_all():
    _, problems = read_settings({"zzz": 1})
    assert problems == [
        "unknown setting zzz; known: engine, upstream, completion, context, privacy, trace."
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"completion": {"maxTokens": "7"}},
        {"completion": {"maxTokens": True}},
        {"completion": {"maxTokens": 0}},
        {"completion": {"maxTokens": 1.5}},
        {"completion": {"enabled": 1}},
        {"completion": {"ignoredFiles": [1]}},
        {"completion": 3},
        {"context": {"suffixShare": 0.95}},
        {"context": {"suffixShare": float("nan")}},
        {"engine": {"model": None}},
        [1],
    ],
)
def test_wrong_value_is_reported_once_and_defaulted(data: object):
    settings, problems = read_settings(data)
    assert settings == Settings()
    assert len(problems) == 1


def test_later_settings_are_read_on_top_of_earlier_ones():
    first, _ = read_settings({"engine": {"model": "x"}, "completion": {"seed": 4}})
    second, problems = read_settings({"completion": {"seed": "?"}}, first)
    assert second == first
    assert problems == ["setting completion.seed cannot be '?'; 4 is used."]


def test_minimum_names_settings_that_exist():
    groups = {group.name: getattr(Settings(), group.name) for group in fields(Settings)}
    known = {f"{name}.{entry.name}" for name, group in groups.items() for entry in fields(group)}
    assert set(MINIMUM) <= known


def test_every_setting_is_documented():
    source = module.__file__
    with open(source) as file:
        lines = file.read().splitlines()
    for group in (getattr(Settings(), entry.name) for entry in fields(Settings)):
        assert is_dataclass(group)
        for entry in fields(group):
            index = next(i for i, line in enumerate(lines) if line.startswith(f"    {entry.name}:"))
            assert lines[index + 1].startswith('    """'), entry.name


def test_value_that_is_none_of_the_few_allowed_is_refused():
    settings, problems = read_settings({"context": {"otherFiles": "sometimes"}})
    assert settings == Settings()
    assert problems == ["setting context.other_files cannot be 'sometimes'; 'auto' is used."]
    assert read_settings({"context": {"otherFiles": "never"}})[1] == []
