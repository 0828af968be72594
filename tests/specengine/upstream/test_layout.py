"""Facts about what a server is asked to continue."""

from __future__ import annotations

import pytest

from specengine.models.registry import ModelEntry, Registry, load
from specengine.protocol import Complete
from specengine.upstream.layout import MAX_DOCUMENTS, MAX_TYPED_CHARS, Ask, Layout, Way, find_entry

MODELS = load()
QWEN = MODELS.get("qwen2.5-coder-7b")
SUFFIX = "\n\nprint(f())\n"


def ask(
    layout: Layout,
    prefix: str,
    suffix: str = SUFFIX,
    *,
    way: Way = "template",
    entry: ModelEntry | None = QWEN,
    heal: bool = True,
    document: str = "a",
) -> Ask:
    message = Complete(request=1, document=document, prefix=prefix, suffix=suffix)
    return layout.lay_out(message, way, entry, heal=heal)


def test_template_has_markers_as_text_and_the_suffix_before_the_middle():
    asked = ask(Layout(), "def f():\n    ret")
    assert asked == Ask(
        "template",
        f"<|fim_prefix|>def f():\n   <|fim_suffix|>{SUFFIX}<|fim_middle|>",
        forced=" ret",
        ends=QWEN.fim.markers if QWEN.fim else (),
    )


def test_prompt_stays_the_same_while_a_word_is_typed():
    layout = Layout()
    asked = [ask(layout, f"def f():\n    {typed}") for typed in ("r", "re", "retu", "return")]
    assert len({one.prompt for one in asked}) == 1
    assert [one.forced for one in asked] == [" r", " re", " retu", " return"]


def test_what_is_typed_on_comes_behind_all_that_was_sent():
    layout = Layout()
    first = ask(layout, "x = compute(0")
    later = ask(layout, "x = compute(01, 2) + ")
    assert later.prompt == first.prompt + "1, 2) +"
    assert later.forced == " "


def test_prompt_is_laid_out_anew_where_it_no_longer_fits():
    layout, fresh = Layout(), Layout()
    ask(layout, "x = compute(0")
    for prefix, suffix in (
        ("y = compute(01", SUFFIX),
        ("x = compute(01", SUFFIX + "more"),
        ("x = compute(0" + "1" * (MAX_TYPED_CHARS + 1), SUFFIX),
    ):
        assert ask(layout, prefix, suffix) == ask(fresh, prefix, suffix)
        ask(layout, "x = compute(0")


def test_documents_are_forgotten_in_the_order_of_their_use():
    layout = Layout()
    for at in range(MAX_DOCUMENTS + 1):
        ask(layout, "x = compute(0", document=str(at))
        ask(layout, "x = compute(0", document="used")
    assert ask(layout, "x = compute(01", document="used").prompt.endswith("1")
    assert not ask(layout, "x = compute(01", document="0").prompt.endswith("1")


def with_files(entry: ModelEntry, way: Way) -> Ask:
    files = (("a.py", "A = 1\n"), ("b.py", "B = 2\n"))
    message = Complete(request=1, document="a", prefix="x = f(0", suffix=SUFFIX, files=files)
    return Layout().lay_out(message, way, entry, heal=True)


def test_other_files_come_first_with_the_models_markers():
    front = "<|repo_name|>project\n<|file_sep|>a.py\nA = 1\n<|file_sep|>b.py\nB = 2\n<|file_sep|>"
    assert with_files(QWEN, "template").prompt.startswith(front + "<|fim_prefix|>x = f(0")
    assert with_files(QWEN, "none").prompt == front + "x = f(0"


def test_model_that_reads_no_files_gets_none():
    assert with_files(MODELS.get("starcoderbase-1b"), "template").prompt.startswith("<fim_prefix>")
    assert with_files(QWEN, "suffix") == Ask("suffix", "x = f(0", suffix=SUFFIX)


def test_llama_cpp_lays_other_files_out_itself():
    assert [path for path, _ in with_files(QWEN, "infill").files] == ["a.py", "b.py"]


def test_prefix_comes_last_where_the_model_wants_it_so():
    entry = MODELS.get("smollm2-135m-fim")
    asked = ask(Layout(), "x = f(0", entry=entry)
    assert asked.prompt == f"<issue_comment>{SUFFIX}<issue_start>x = f(0"


def test_marker_of_sentencepiece_is_written_with_a_blank():
    asked = ask(Layout(), "x = f(0", entry=MODELS.get("codellama-7b"))
    assert asked.prompt == f" <PRE>x = f(0 <SUF>{SUFFIX} <MID>"


def test_empty_suffix_leaves_the_markers_out():
    asked = ask(Layout(), "x = f(0", "")
    assert asked.prompt == "x = f(0"
    assert asked.ends == ask(Layout(), "x = f(0").ends


@pytest.mark.parametrize("entry", [None, MODELS.get("smollm2-135m")])
def test_model_without_template_continues_the_prefix(entry: ModelEntry | None):
    assert ask(Layout(), "x = f(0", entry=entry) == Ask("none", "x = f(0")


def test_field_suffix_carries_the_suffix():
    asked = ask(Layout(), "x = f(0", way="suffix", entry=None)
    assert asked == Ask("suffix", "x = f(0", suffix=SUFFIX)


def test_infill_tells_what_was_typed_apart():
    layout = Layout()
    ask(layout, "x = f(0", way="infill", entry=None)
    asked = ask(layout, "x = f(01, 2", way="infill", entry=None)
    assert asked == Ask("infill", "1, 2", "x = f(0", SUFFIX)


def test_word_in_which_an_answer_went_on_otherwise_is_not_stepped_over_again():
    layout = Layout()
    message = Complete(request=1, document="a", prefix="x = re", suffix=SUFFIX)
    layout.note_misaligned(message)
    assert ask(layout, "x = ret").forced == ""
    assert ask(layout, "x = ret", document="b").forced == " ret"
    assert ask(layout, "x = ret + a").forced == " a"


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("Qwen/Qwen2.5-Coder-7B", "qwen2.5-coder-7b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct-AWQ", "qwen2.5-coder-7b"),
        ("qwen2.5-coder:7b", "qwen2.5-coder-7b"),
        ("/models/qwen2.5-coder-1.5b-q8_0.gguf", "qwen2.5-coder-1.5b"),
        ("bigcode/starcoder2-3b", "starcoder2-3b"),
        ("smollm2-135m-fim", "smollm2-135m-fim"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"),
        ("JetBrains/Mellum-4b-base", "mellum-4b"),
        ("codellama/CodeLlama-7b-hf", "codellama-7b"),
    ],
)
def test_servers_name_for_a_model_finds_it(served: str, name: str):
    found = find_entry(MODELS, served)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("served", ["", "gpt-4o", "my-qwen2.5-coder-7b", "qwen2.5-coder-70b", "m"])
def test_name_that_is_not_plain_finds_none(served: str):
    assert find_entry(MODELS, served) is None


def test_no_model_is_found_where_none_is_declared():
    assert find_entry(Registry("", {}, {}), "qwen2.5-coder-7b") is None


def test_answer_ends_at_any_marker_first_at_those_of_the_end():
    """Servers take few stop strings; some write out what a model repeats of its prompt."""
    assert ask(Layout(), "x = f(0").ends == (
        "<|fim_pad|>",
        "<|file_sep|>",
        "<|repo_name|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_prefix|>",
    )
