"""The commands, keys and pages of the plugin; the engine is a scripted one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.editors.neovim.conftest import OpenNeovim, write
from tests.editors.neovim.editor import BUILDS, Build, Neovim, Profile, neovim
from tests.editors.scripted_engine import STATEMENT, ScriptedEngine

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

READY = r"^fake"
TEXT = "def add(a, b):\n    \n"


@pytest.fixture(
    scope="module",
    params=[build for build in BUILDS if build.client == "auto"],
    ids=lambda build: build.id,
)
def build(request: pytest.FixtureRequest) -> Build:
    """A build of Neovim; commands know nothing of who asks and draws."""
    return request.param


@pytest.fixture
def editor(open_neovim: OpenNeovim) -> Iterator[Neovim]:
    with open_neovim({"add.py": TEXT}) as editor:
        editor.await_status(READY)
        editor.insert_at(2, 5)
        yield editor


def test_turned_off_asks_nothing_until_turned_on(editor: Neovim) -> None:
    editor.run("SpecEngine toggle")
    editor.await_status("off$")
    before = len(editor.trace())
    editor.insert_at(2, 5)
    editor.type("ret")
    editor.await_line("    ret")
    editor.run("SpecEngine toggle")
    editor.await_status(READY)
    assert editor.trace()[before:] == []
    editor.insert_at(2, 8)
    editor.type("u")
    editor.await_ghost_text(STATEMENT[4:])


def test_status_tells_what_runs(editor: Neovim) -> None:
    editor.type("ret")
    editor.await_ghost_text()
    editor.run("SpecEngine status")
    shown = editor.terminal.await_value(editor.terminal.words, lambda text: "drafter" in text)
    assert "engine: ready, model fake, drafter none" in shown
    assert "server: running" in shown


def test_restart_starts_another_server(editor: Neovim) -> None:
    (pid,) = editor.server_pids()
    editor.run("SpecEngine restart")
    editor.terminal.await_value(editor.server_pids, lambda pids: len(pids) == 1 and pid not in pids)
    editor.await_status(READY)
    editor.insert_at(2, 5)
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])


def test_the_trace_has_a_line_for_each_request(editor: Neovim) -> None:
    editor.type("ret")
    editor.await_ghost_text()
    editor.run("SpecEngine trace")
    editor.terminal.await_value(
        editor.terminal.words, lambda text: "python automatic" in text and "shown" in text
    )
    editor.picture("trace")


def test_an_unknown_command_names_the_known_ones(editor: Neovim) -> None:
    editor.run("SpecEngine sing")
    editor.terminal.await_value(
        editor.messages, lambda text: "known: restart, status, toggle, trace" in text
    )


def test_checkhealth_is_content(editor: Neovim) -> None:
    editor.run("checkhealth specengine")
    editor.terminal.await_value(editor.text, lambda text: "engine: ready, model fake" in text)
    text = editor.text()
    assert "ERROR" not in text
    assert "WARNING" not in text
    editor.picture("checkhealth")


def test_alternatives_can_be_looked_through(editor: Neovim, engine: ScriptedEngine) -> None:
    engine.alternatives = ("return a - b", "return a * b")

    def await_shown(*words: str) -> None:
        def is_right(screen: str) -> bool:
            return all(word in screen for word in words)

        editor.terminal.await_value(editor.terminal.words, is_right)

    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])
    editor.press("M-\\")
    await_shown(STATEMENT, "(1/3)")
    editor.press("M-n")
    await_shown("return a - b", "(2/3)")
    editor.picture("alternatives")
    editor.press("M-n")
    await_shown("return a * b", "(3/3)")
    editor.press("M-p")
    await_shown("return a - b", "(2/3)")
    editor.press("Tab")
    editor.await_line("    return a - b")
    invoked = [each for each in editor.trace() if each["trigger"] == "invoked"]
    assert len(invoked) == 1


def test_what_was_accepted_is_told_to_the_server(editor: Neovim) -> None:
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])
    editor.press("Tab")
    editor.await_line(f"    {STATEMENT}")
    path = editor.profile.folder / "state" / "specengine" / "trace.jsonl"
    editor.terminal.await_value(path.read_text, lambda text: '"event":"accepted"' in text)


def dismiss_a_suggestion(editor: Neovim) -> None:
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])
    editor.press("C-]")
    editor.await_no_ghost_text()


def test_what_was_dismissed_can_be_asked_for(editor: Neovim) -> None:
    dismiss_a_suggestion(editor)
    editor.press("M-\\")
    editor.await_ghost_text(STATEMENT[3:])


def test_dismissed_text_stays_away_until_the_next_key(editor: Neovim) -> None:
    dismiss_a_suggestion(editor)
    editor.type("u")
    editor.await_ghost_text(STATEMENT[4:])
    assert editor.line() == "    retu"


def test_tab_indents_where_nothing_is_suggested(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = ""
    with open_neovim({"add.py": TEXT}) as editor:
        editor.await_status(READY)
        editor.insert_at(2, 5)
        editor.press("Tab")
        editor.await_line(" " * 8)


def test_a_key_keeps_what_the_user_had_mapped_it_to(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = ""
    with open_neovim({"add.py": TEXT}) as editor:
        editor.await_status(READY)
        editor.ask("execute('inoremap <C-b> mapped')")
        setup = "local s = require('specengine').settings(); s.keys.accept = '<C-b>'"
        editor.ask(f"execute(\"lua {setup}; require('specengine').setup(s)\")")
        editor.await_status(READY)
        editor.insert_at(2, 5)
        editor.press("C-b")
        editor.await_line("    mapped")


def test_a_wrong_setting_is_told_by_name(open_neovim: OpenNeovim) -> None:
    with open_neovim({"add.py": TEXT}, {"clint": "own"}) as editor:
        editor.await_status(READY)
        assert "unknown setting clint" in editor.messages()


def test_a_missing_program_is_said_once(open_neovim: OpenNeovim) -> None:
    with open_neovim({"add.py": TEXT}, {"cmd": "/no/such/program"}) as editor:
        editor.await_status("no program$")
        editor.insert_at(2, 5)
        editor.type("ret")
        editor.await_line("    ret")
        told = [line for line in editor.messages().splitlines() if "no language server" in line]
        assert len(told) == 1
        editor.run("checkhealth specengine")
        editor.terminal.await_value(
            editor.text, lambda text: "/no/such/program, which cannot be run" in text
        )
        editor.picture("no_program")


def test_a_plain_package_needs_no_line_of_configuration(
    build: Build, short_folder: Path, engine: ScriptedEngine
) -> None:
    """The program is found in the environment of the checkout that the package is a link into."""
    server = f"{{ engine = {{ socket = '{engine.path}' }} }}"
    profile = Profile(build, short_folder, init=f"vim.g.specengine = {{ server = {server} }}\n")
    with neovim(profile, *write(short_folder, {"add.py": TEXT})) as editor:
        editor.await_status(READY)
        editor.insert_at(2, 5)
        editor.type("ret")
        editor.terminal.await_value(editor.terminal.words, lambda text: STATEMENT in text)


def test_the_server_is_told_of_each_project(open_neovim: OpenNeovim) -> None:
    """What a project's .gitignore names is not read, also in the second one."""
    with open_neovim({"add.py": TEXT}) as editor:
        editor.await_status(READY)
        project = editor.profile.folder / "project"
        (project / ".git").mkdir(parents=True)
        write(project, {".gitignore": "secret.py\n", "secret.py": TEXT, "open.py": TEXT})
        cases = {"open.py": (True, False), "secret.py": (False, True)}
        for name, expected in cases.items():
            editor.edit(project / name)
            editor.insert_at(2, 5)
            editor.type("ret")
            editor.terminal.await_value(
                lambda: (editor.ghost_text() != "", last_outcome(editor) == "empty"),
                expected.__eq__,
            )


def last_outcome(editor: Neovim) -> str:
    outcomes = [record["outcome"] for record in editor.trace()]
    return outcomes[-1] if outcomes else ""


def test_the_component_of_lualine_has_the_words_of_the_status_line(editor: Neovim) -> None:
    """Something stands in for the class of lualine that it extends."""
    base = "{ extend = function() return {} end }"
    editor.ask(f"execute(\"lua package.loaded['lualine.component'] = {base}\")")
    component = "require('lualine.components.specengine')"
    assert editor.ask(f'luaeval("{component}:update_status()")').startswith("fake")


def test_the_help_has_a_tag_for_each_part(editor: Neovim) -> None:
    editor.run("helptags ALL")
    for tag in ("specengine", "specengine-settings", ":SpecEngine", "specengine-statusline"):
        editor.run(f"help {tag}")
        editor.terminal.await_value(lambda: editor.ask("&buftype").strip(), "help".__eq__)
        assert editor.ask("expand('%:t')").strip() == "specengine.txt"
        editor.run("helpclose")
