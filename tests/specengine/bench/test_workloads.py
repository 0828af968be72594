from __future__ import annotations

import ast
import importlib.resources

import pytest

from specengine.bench.workloads import (
    CLASSES,
    INFILL_SETS,
    SETS,
    edits,
    example_file,
    infill_sets,
    load_classes,
    load_infillings,
    load_problems,
    long_gaps,
    prompt_sets,
    spread,
)


def test_data_is_whole_and_has_its_licence():
    assert len(load_problems()) == 164
    assert [len(load_infillings(name)) for name in INFILL_SETS] == [441, 565, 82]
    folder = importlib.resources.files("specengine.bench") / "data" / "humaneval"
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text("utf-8")


def test_sets_hold_as_many_prompts_as_asked():
    sets = prompt_sets(3)
    assert [one.name for one in sets] == ["humaneval", "infilling", "edits"]
    assert [len(one.places) for one in sets] == [3, 3, 3]


def test_classes_are_sets_too():
    sets = prompt_sets(2, ["prose", "edits", "json"])
    assert [one.name for one in sets] == ["prose", "edits", "json"]
    assert [len(one.places) for one in sets] == [2, 2, 2]


def test_no_prompt_ends_where_a_token_may_go_on():
    sets = prompt_sets(200, [*SETS, *CLASSES])
    prefixes = [place.prefix for one in sets for place in one.places]
    assert all(prefix == prefix.rstrip() for prefix in prefixes)


def test_long_gaps_have_text_behind_them_in_lines_of_its_own():
    gaps = long_gaps(40)
    assert len({gap.prefix for gap in gaps}) > 20
    assert all(gap.suffix.startswith("\n") for gap in gaps)


def test_each_class_has_prompts_of_its_own():
    classes = load_classes()
    assert tuple(classes) == CLASSES
    prompts = [prompt for each in classes.values() for prompt in each]
    assert len(set(prompts)) == len(prompts) >= 2 * len(classes)
    assert all(80 < len(prompt) < 2000 for prompt in prompts)


def test_infill_sets_hold_as_many_gaps_as_asked():
    sets = infill_sets(["span", "multi"], 3)
    assert [one.name for one in sets] == ["span", "multi"]
    assert [len(one.infillings) for one in sets] == [3, 3]
    assert [one.has_whole_lines for one in sets] == [False, True]


def test_a_part_of_a_set_is_spread_over_it():
    assert spread(range(100), 4) == (0, 25, 50, 75)
    assert spread(range(3), 5) == (0, 1, 2)
    problems = {one.entry_point for one in infill_sets(["single"], 60)[0].infillings}
    assert len(problems) > 40


@pytest.mark.parametrize("name", INFILL_SETS)
def test_parts_make_a_function(name: str):
    for infilling in load_infillings(name):
        ast.parse(infilling.prompt + infilling.canonical_solution + infilling.suffix)
        assert infilling.canonical_solution.endswith("\n") or name == "span"


def test_second_version_stops_behind_the_first_line_of_its_body():
    problem = load_problems()[2]
    prompt = edits(load_problems())[0]
    assert prompt.startswith(problem.prompt + problem.canonical_solution)
    assert prompt.endswith('    """\n    return number % 1.0')
    assert prompt.count(f"def {problem.entry_point}_checked(") == 1


def test_third_class_stops_behind_its_first_line():
    prompt = edits(load_problems())[1]
    assert prompt.splitlines()[-1] == "class BelowZero(Command):"
    assert prompt.count("(Command):") == 3


def test_edits_are_python_up_to_where_they_stop():
    for prompt in edits(load_problems()):
        assert first_wrong_line(prompt) >= len(prompt.splitlines())


def first_wrong_line(source: str) -> int:
    """Return the line where Python cannot go on, or the number of lines."""
    try:
        ast.parse(source)
    except SyntaxError as error:
        return error.lineno or 0
    return len(source.splitlines())


def test_example_is_python_without_effects():
    tree = ast.parse(example_file().read_text("utf-8"))
    kinds = ast.Import | ast.ImportFrom | ast.Assign | ast.ClassDef | ast.FunctionDef | ast.Expr
    assert all(isinstance(node, kinds) for node in tree.body)
