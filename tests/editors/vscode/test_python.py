"""Which Python is started: none that is wrong, and none that a folder without trust names."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.editors.conftest import Watch
from tests.editors.scripted_engine import ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup
from tests.editors.vscode.python_extension import write_vsix

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

FOLDER_SETTINGS = json.dumps({"specengine.python": "{folder}/evil.sh"})
FILES = {
    "a.py": "print(1)\n",
    "evil.sh": '#!/bin/sh\ntouch "$(dirname "$0")/was_run"\n',
    ".vscode/settings.json": FOLDER_SETTINGS,
}
NEVER_TRUSTED = {
    "security.workspace.trust.enabled": True,
    "security.workspace.trust.startupPrompt": "never",
    "security.workspace.trust.banner": "never",
}


def test_a_missing_python_is_said_in_the_status_bar(open_window: OpenWindow, watch: Watch) -> None:
    setup = Setup({"a.py": "print(1)\n"}, {"specengine.python": "/no/such/python"})
    with open_window(setup) as window, watch(window.workbench.picture):
        window.workbench.await_status("no Python$")
        assert "/no/such/python" in window.workbench.status_label()
        window.workbench.page.locator(".notification-toast", has_text="SpecEngine needs").wait_for()
        window.workbench.picture("no_python")


def test_a_folder_without_trust_names_no_python(
    open_window: OpenWindow, engine: ScriptedEngine, watch: Watch
) -> None:
    settings = {"specengine.engine.socket": str(engine.path), **NEVER_TRUSTED}
    with open_window(Setup(FILES, settings)) as window, watch(window.workbench.picture):
        window.workbench.page.locator(".statusbar-item", has_text="Restricted Mode").wait_for()
        window.workbench.await_status("^fake")
        window.workbench.picture("restricted")
        assert not (window.folder / "was_run").exists()


def test_a_trusted_folder_names_a_python(open_window: OpenWindow, watch: Watch) -> None:
    """The control of the one above: with trust, what the folder names is run."""
    with open_window(Setup(FILES)) as window, watch(window.workbench.picture):
        window.workbench.await_status("no Python$")
        assert (window.folder / "was_run").exists()


@pytest.mark.parametrize(("extra", "status"), [({}, "^fake"), (NEVER_TRUSTED, "no Python$")])
def test_the_selected_interpreter_is_taken_in_trusted_folders_only(
    open_window: OpenWindow,
    engine: ScriptedEngine,
    watch: Watch,
    tmp_path: Path,
    extra: dict[str, object],
    status: str,
) -> None:
    settings = {"specengine.python": "", "specengine.engine.socket": str(engine.path), **extra}
    extension = write_vsix(tmp_path / "python.vsix", sys.executable)
    setup = Setup({"a.py": "print(1)\n"}, settings, extensions=[extension])
    with open_window(setup) as window, watch(window.workbench.picture):
        window.workbench.await_status(status)


def test_a_python_can_be_chosen(
    open_window: OpenWindow, engine: ScriptedEngine, watch: Watch
) -> None:
    """That of an environment is a link; what is chosen is the link."""
    settings = {"specengine.python": "", "specengine.engine.socket": str(engine.path)}
    with open_window(Setup({"a.py": "print(1)\n"}, settings)) as window:
        workbench = window.workbench
        with watch(workbench.picture):
            workbench.await_status("no Python$")
            workbench.page.locator(".notification-toast").get_by_text("Choose Python…").click()
            box = workbench.page.locator(".quick-input-widget input[type='text']")
            box.fill(f"{Path(sys.executable).parent}/")
            workbench.page.locator(
                ".quick-input-list .monaco-list-row", has_text="activate.csh"
            ).wait_for()
            workbench.type(Path(sys.executable).name)
            workbench.press("Enter")
            workbench.await_status("^fake")


def test_an_environment_is_made_for_who_has_none(
    open_window: OpenWindow, engine: ScriptedEngine, watch: Watch
) -> None:
    """What the package needs comes from the environment of the tests, so no network is asked."""
    settings = {
        "specengine.python": "",
        "specengine.pipArguments": ["--no-deps", "--no-index", "--ignore-installed"],
        "specengine.engine.socket": str(engine.path),
    }
    environment = {"PYTHONPATH": sysconfig.get_path("purelib")}
    setup = Setup({"a.py": "print(1)\n"}, settings, environment)
    with open_window(setup) as window, watch(window.workbench.picture):
        page = window.workbench.page
        window.workbench.await_status("no Python$")
        page.locator(".notification-toast").get_by_text("Install…").click()
        page.locator(".monaco-dialog-box").get_by_text("Install", exact=True).click()
        window.workbench.await_status("is being installed$")
        window.workbench.picture("installing")
        window.workbench.await_status("^fake")


def test_the_first_start_opens_the_walkthrough(
    open_window: OpenWindow, engine: ScriptedEngine, watch: Watch
) -> None:
    """Its first step is done as soon as the engine answers."""
    settings = {
        "specengine.engine.socket": str(engine.path),
        "workbench.welcomePage.walkthroughs.openOnInstall": True,
    }
    with open_window(Setup({"a.py": "print(1)\n"}, settings)) as window:
        workbench = window.workbench
        with watch(workbench.picture):
            workbench.await_status("^fake")
            step = workbench.page.locator(".getting-started-step", has_text="Give it a Python")
            step.locator(".codicon.complete").wait_for()
            workbench.picture("first_start")
