"""A stand-in for the Python extension: it says which interpreter is selected, and nothing else."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

PACKAGE: Final[dict[str, Any]] = {
    "name": "python",
    "publisher": "ms-python",
    "version": "2026.0.0",
    "engines": {"vscode": "^1.91.0"},
    "main": "./main.js",
    "capabilities": {"untrustedWorkspaces": {"supported": True}},
}

MAIN: Final = """
const { EventEmitter, Uri } = require("vscode");
exports.activate = () => ({
  environments: {
    getActiveEnvironmentPath: () => ({ path: INTERPRETER }),
    resolveEnvironment: async ({ path }) => ({ executable: { uri: Uri.file(path) } }),
    onDidChangeActiveEnvironmentPath: new EventEmitter().event,
  },
});
"""


def write_vsix(vsix: Path, interpreter: str) -> Path:
    """Write the package of an extension that has an interpreter selected."""
    with zipfile.ZipFile(vsix, "w") as package:
        package.writestr("extension/package.json", json.dumps(PACKAGE))
        package.writestr("extension/main.js", MAIN.replace("INTERPRETER", json.dumps(interpreter)))
    return vsix
