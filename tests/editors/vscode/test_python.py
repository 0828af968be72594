"""Which Python is started: none that is wrong, and none that a folder without trust names."""

from __future__ import annotations

import json

import pytest

from tests.editors.conftest import Watch
from tests.editors.scripted_engine import ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup

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
