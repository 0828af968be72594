"""Markers that a client has written into its prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from specengine.http.templates import split
from specengine.models import registry

TEMPLATES = registry.load(own_file=Path("none")).fim_templates


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("before", ["", "a = ", "def f():\n    x\n"])
@pytest.mark.parametrize("after", ["", "\nb = 2\n"])
def test_markers_of_each_template_are_found(name: str, before: str, after: str) -> None:
    template = TEMPLATES[name]
    prompts = [f"{template.suffix}{after}{template.prefix}{before}{template.middle or ''}"]
    if template.middle is not None:
        prompts.append(f"{template.prefix}{before}{template.suffix}{after}{template.middle}")
    for prompt in prompts:
        assert split(prompt, TEMPLATES.values()) == (before, after)


@pytest.mark.parametrize(
    "prompt",
    ["", "x = 1", "<fim_prefix>x", "x<fim_middle>", "<fim_suffix>x<fim_middle>", "# [SUFFIX] x"],
)
def test_a_prompt_without_all_markers_is_text(prompt: str) -> None:
    assert split(prompt, TEMPLATES.values()) == (prompt, "")


def test_a_text_about_markers_keeps_its_own() -> None:
    before = 'MARKERS = ("<fim_prefix>", "<fim_suffix>")\nx = '
    prompt = f"<fim_prefix>{before}<fim_suffix>\n<fim_middle>"
    assert split(prompt, TEMPLATES.values()) == (before, "\n")


def test_files_in_front_stay_in_front() -> None:
    prompt = "<|file_sep|>a.py\nx = 1\n<|fim_prefix|>y = <|fim_suffix|><|fim_middle|>"
    assert split(prompt, TEMPLATES.values()) == ("<|file_sep|>a.py\nx = 1\ny = ", "")
