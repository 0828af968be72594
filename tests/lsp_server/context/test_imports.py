"""Facts about where imported files may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsp_server.context.imports import imported_paths

FILE = Path("/w/pkg/sub/main.py")


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("python", "import pkg.queue\n", "/w/pkg/queue.py"),
        ("python", "from pkg import jobs\n", "/w/pkg/__init__.py"),
        ("python", "from .near import a\n", "/w/pkg/sub/near.py"),
        ("python", "from ..up import a\n", "/w/pkg/up.py"),
        ("python", "from . import a\n", "/w/pkg/sub/__init__.py"),
        ("typescript", "import { a } from './b';\n", "/w/pkg/sub/b.ts"),
        ("javascript", "const a = require('../b.js');\n", "/w/pkg/sub/../b.js"),
        ("cpp", '#include "q.h"\n', "/w/pkg/sub/q.h"),
    ],
)
def test_imports_lead_to_paths(language: str, text: str, expected: str):
    assert Path(expected) in list(imported_paths(text, language, FILE, [Path("/w")]))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "from " + "." * 40 + "x import a\n"),
        ("python", "# import pkg\n"),
        ("typescript", "import fs from 'fs';\n"),
        ("cpp", "#include <vector>\n"),
        ("ruby", "require 'a'\n"),
    ],
)
def test_what_is_no_file_of_the_project_leads_nowhere(language: str, text: str):
    assert list(imported_paths(text, language, FILE, [Path("/w")])) == []
