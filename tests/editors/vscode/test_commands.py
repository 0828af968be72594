"""The commands of the extension, from the palette and the menu; the engine is a scripted one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.editors.scripted_engine import STATEMENT, ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup, Window
from tests.editors.vscode.workbench import STATUS, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

READY = r"^fake"
FILE = "add.py"
TEXT = "def add(a, b):\n    "


@pytest.fixture(scope="module")
def opened(open_window: OpenWindow, engine: ScriptedEngine) -> Iterator[Window]:
    settings = {"specengine.engine.socket": str(engine.path), "editor.autoIndent": "none"}
    with open_window(Setup({FILE: TEXT}, settings)) as window:
        window.workbench.await_status(READY)
        yield window


@pytest.fixture
def window(opened: Window, engine: ScriptedEngine) -> Window:
    """The window, with the file as it was and the cursor at its end."""
    engine.alternatives = ()
    opened.workbench.open(FILE, 1, 1)
    opened.workbench.replace_all(TEXT)
    return opened


@pytest.fixture
def workbench(window: Window) -> Workbench:
    return window.workbench


def test_paused_asks_nothing_until_resumed(window: Window, workbench: Workbench) -> None:
    workbench.run("SpecEngine: Pause")
    workbench.await_status("paused$")
    before = len(window.trace())
    workbench.type("ret")
    workbench.await_text("    ret")
    workbench.picture("paused")
    assert workbench.ghost_text() == ""
    workbench.run("SpecEngine: Suggest Here")
    workbench.await_ghost_text(STATEMENT[3:])
    workbench.await_value(lambda: len(window.trace()) > before, bool)
    assert {record["trigger"] for record in window.trace()[before:]} == {"invoked"}
    workbench.run("SpecEngine: Resume")
    workbench.await_status(READY)
    workbench.type("u")
    workbench.await_ghost_text(STATEMENT[4:])


def test_a_snooze_says_until_when(workbench: Workbench) -> None:
    workbench.run("SpecEngine: Snooze")
    workbench.choose("15 minutes")
    workbench.await_status(r"paused until \d\d:\d\d$")
    workbench.run("SpecEngine: Resume")
    workbench.await_status(READY)


def test_a_language_can_be_turned_off_and_on(window: Window, workbench: Workbench) -> None:
    workbench.run("SpecEngine: Turn On or Off for the Current Language")
    workbench.await_status("off$")
    assert "python" in workbench.status_label()
    before = len(window.trace())
    workbench.type("ret")
    workbench.await_text("    ret")
    workbench.run("SpecEngine: Turn On or Off for the Current Language")
    workbench.await_status(READY)
    assert window.trace()[before:] == []
    workbench.type("u")
    workbench.await_ghost_text(STATEMENT[4:])


def test_a_click_on_the_status_bar_opens_the_menu(workbench: Workbench) -> None:
    workbench.page.locator(STATUS).click()
    entries = " ".join(workbench.choices())
    workbench.picture("menu")
    workbench.press("Escape")
    for entry in ("Pause", "Snooze", "Turn off for python", "Choose model", "Restart", "trace"):
        assert entry in entries


def test_models_are_offered_with_what_decides_between_them(workbench: Workbench) -> None:
    workbench.run("SpecEngine: Choose Model")
    workbench.page.locator(
        ".quick-input-list .monaco-list-row", has_text="smollm2"
    ).first.wait_for()
    entries = workbench.choices()
    workbench.picture("models")
    workbench.press("Escape")
    (default,) = [entry for entry in entries if "(default)" in entry]
    assert "GB of memory" in default
    assert "Apache-2.0" in default


def test_the_output_channel_has_one_line_for_a_suggestion(
    window: Window, workbench: Workbench
) -> None:
    workbench.type("ret")
    workbench.await_ghost_text()
    workbench.run("SpecEngine: Show Latency Trace")
    shown = re.compile("shown|cached|adopted")
    workbench.page.locator(".panel .view-line", has_text=shown).first.wait_for()
    workbench.picture("trace")
    assert workbench.status().startswith("fake")
    workbench.run("View: Toggle Panel Visibility")
    assert "key to ghost text" in window.log()
    assert "add(a, b)" not in window.log()


def test_a_report_names_no_folder(window: Window, workbench: Workbench) -> None:
    workbench.run("SpecEngine: Report a Problem")
    workbench.page.locator(".view-line", has_text="SpecEngine report").wait_for()
    workbench.picture("report")
    report = workbench.await_value(workbench.copy_all, lambda text: "engine ready" in text)
    workbench.run("View: Revert and Close Editor")
    assert "package: " in report
    assert str(window.folder) not in report


def test_the_trace_page_has_the_requests(workbench: Workbench) -> None:
    workbench.type("ret")
    workbench.await_ghost_text()
    workbench.run("SpecEngine: Open Trace Page")
    page = workbench.page.frame_locator("iframe.webview").frame_locator("#active-frame")
    page.get_by_text(re.compile(r"\d+ requests in 1 sessions")).wait_for()
    page.get_by_text(re.compile(r"until text: \d+ requests")).wait_for()
    workbench.picture("trace_page")
    workbench.run("View: Close Editor")


def test_the_walkthrough_has_a_page_for_each_step(workbench: Workbench) -> None:
    pages = {
        "Give it a Python": "A Python with the package",
        "Write code": "Suggestions",
        "Choose a model": "Models",
        "Pause it, and see": "The status bar item",
    }
    workbench.run("View: Toggle Primary Side Bar Visibility")  # pages need some width
    workbench.run("Welcome: Open Walkthrough")
    workbench.choose("Get Started with SpecEngine")
    for step, title in pages.items():
        workbench.page.locator(".getting-started-step", has_text=step).click()
        page = workbench.page.frame_locator("iframe.webview").frame_locator("#active-frame")
        page.locator("h1", has_text=title).wait_for()
    workbench.picture("walkthrough")
    workbench.run("View: Close Editor")
    workbench.run("View: Toggle Primary Side Bar Visibility")


def test_alternatives_can_be_looked_through(workbench: Workbench, engine: ScriptedEngine) -> None:
    engine.alternatives = ("return a - b", "return a * b")
    workbench.type("ret")
    workbench.await_ghost_text(STATEMENT[3:])
    workbench.press("Alt+]")
    workbench.await_ghost_text("urn a - b")
    workbench.press("Alt+]")
    workbench.await_ghost_text("urn a * b")
    workbench.press("Alt+[")
    workbench.await_ghost_text("urn a - b")
    workbench.press("Tab")
    workbench.await_text("return a - b")
