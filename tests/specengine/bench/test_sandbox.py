from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from specengine.bench import confined, sandbox
from specengine.bench.infill import Cursor, gap
from specengine.bench.sandbox import Limits, all_passes, is_available, passes
from specengine.bench.workloads import INFILL_SETS, infill_sets

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be limited")

SHORT = Limits(wall_s=0.3)
SMALL = Limits(memory_bytes=1 << 26)

CHECKED_FILL = """
def fill(places):
    return [None] * places

def check(candidate):
    assert candidate(2) == [None, None]

"""


def unless(error: str, action: str) -> str:
    """Return a program that comes to its end only if an action raises an error."""
    body = "".join(f"    {line}\n" for line in action.split("\n"))
    return f"try:\n{body}except {error}:\n    pass\nelse:\n    raise SystemExit\n"


@pytest.mark.parametrize("name", INFILL_SETS)
def test_what_was_missing_passes(name: str):
    (one,) = infill_sets([name], 82)
    places = [gap(infilling, Cursor.GIVEN, one.has_whole_lines) for infilling in one.infillings]
    programs = [place.program(place.missing) for place in places[::20]]
    assert all_passes(programs) == [True] * 5


def test_wrong_text_does_not_pass():
    (one,) = infill_sets(["single"], 4)
    places = [gap(infilling, Cursor.GIVEN, one.has_whole_lines) for infilling in one.infillings]
    assert all_passes([place.program("    return 7\n") for place in places]) == [False] * 4


def test_equal_programs_run_once(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    def note(program: str, limits: Limits) -> bool:
        seen.append(program)
        return program == "good"

    monkeypatch.setattr(sandbox, "passes", note)
    assert all_passes(["good", "bad", "good"]) == [True, False, True]
    assert sorted(seen) == ["bad", "good"]


@pytest.mark.parametrize(
    "program",
    [
        CHECKED_FILL + "check(max)",
        "def broken(:",
        "\0",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise KeyboardInterrupt",
        "input()",
        "import os\nos.abort()",
    ],
)
def test_program_that_does_not_come_to_its_end_has_not_passed(program: str):
    assert not passes(program)


@pytest.mark.parametrize("program", [CHECKED_FILL + "check(fill)", "import random, re, typing"])
def test_program_that_comes_to_its_end_has_passed(program: str):
    assert passes(program)


def test_program_is_a_module():
    assert passes(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "assert __name__ == 'program' and Point(1).x == 1"
    )


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True: print('x' * 10_000)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_endless_program_is_ended(program: str):
    assert not passes(program, SHORT)


def test_memory_is_limited():
    assert passes(unless("MemoryError", "hog = []\nwhile True: hog.append(bytes(1 << 20))"), SMALL)


@pytest.mark.parametrize(
    "program",
    [
        "def dig(): dig()\ndig()",
        "import sys\nsys.setrecursionlimit(10**9)\ndef dig(): dig()\ndig()",
        "import sys\nsys.setrecursionlimit(10**9)\npit = []\nfor _ in range(10**5): pit = [pit]\n"
        "repr(pit)",
    ],
)
def test_deep_recursion_ends_the_program_only(program: str):
    assert not passes(program, SMALL)


@pytest.mark.parametrize(
    "action",
    [
        "import os\nos.fork()",
        "import os\nos.system('true')",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.execv('/bin/true', ['true'])",
        "import subprocess\nsubprocess.run(['true'])",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "import ctypes\nctypes.CDLL(None)",
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))",
    ],
)
def test_processes_network_and_native_code_are_refused(action: str):
    assert passes(unless("OSError", action))


@pytest.mark.parametrize(
    "action",
    [
        "open({file!r}, 'w')",
        "open({file!r}, 'r+')",
        "import os\nos.open({file!r}, os.O_WRONLY)",
        "import os\nos.remove({file!r})",
        "import os\nos.rename({file!r}, 'mine')",
        "import os\nos.mkdir('new')",
        "import shutil\nshutil.rmtree({folder!r})",
        "import pathlib\npathlib.Path('new').write_text('x')",
        "import tempfile\ntempfile.TemporaryFile()",
    ],
)
def test_files_stay_as_they_are(action: str, tmp_path: Path):
    file = tmp_path / "kept"
    file.write_text("as it was", "utf-8")
    action = action.format(file=str(file), folder=str(tmp_path))
    assert passes(unless("OSError", action))
    assert file.read_text("utf-8") == "as it was"


def test_system_holds_the_limits_too():
    """The hook alone can be got round."""
    assert passes(
        "import resource\n"
        "limits = [(resource.RLIMIT_CPU, 3), (resource.RLIMIT_AS, 1 << 30),\n"
        "    (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 0)]\n"
        "assert all(resource.getrlimit(limit) == (n, n) for limit, n in limits)"
    )


def test_program_finds_nothing_of_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "x")
    assert passes("import os\nassert 'SECRET' not in os.environ")
    assert passes("import os\nassert os.listdir() == ['program.py']")
    assert passes("import os\nassert os.getsid(0) == os.getpid()")
    assert passes(unless("ImportError", "import torch"))
    assert passes(unless("ImportError", "import specengine"))


def test_folder_of_the_program_goes_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert passes("")
    assert not passes("while True: pass", SHORT)
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_has_started_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Root may fork in spite of the limit, if something gets round the hook."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        f"writer = os.open({str(pipe)!r}, os.O_WRONLY)\n"
        "if os.fork() == 0:\n"
        "    time.sleep(20)\n"
        "    os.write(writer, b'alive')\n",
        "utf-8",
    )
    monkeypatch.setattr(confined, "__file__", str(script))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert not passes("")
        os.set_blocking(reader, True)
        assert os.read(reader, 5) == b""
    finally:
        os.close(reader)


def test_system_that_cannot_limit_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert is_available()
    script = tmp_path / "script.py"
    script.write_text(f"raise SystemExit({confined.NOT_CONFINED})", "utf-8")
    monkeypatch.setattr(confined, "__file__", str(script))
    assert not is_available()


def test_limit_that_cannot_be_set_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / confined.PROGRAM).write_text("raise AssertionError", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert confined.main(1.0, 1, 1) == confined.NOT_CONFINED
