"""Packages are fetched once, by their pinned versions, and only source comes out of them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from specengine.errors import ConfigError, LoadError
from specengine.train import fetch
from specengine.train.corpus import is_held_out
from specengine.train.fetch import Listing, Package, fetch_corpus, npm_folder, read_listing

MIT = Package("1.0", "MIT")
LISTING = Listing(pypi={"alpha": MIT}, npm={"@scope/beta": MIT})
PERMISSIVE = ("MIT", "BSD", "Apache-2.0", "ISC", "PSF", "CC0", "Zlib", "BlueOak", "Public-Domain")


class Registries:
    """Stands for pip and npm: writes what they would download."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.broken: set[str] = set()

    def run(self, command: list[str], folder: str) -> None:
        self.commands.append(command)
        if any(name in command[-1] for name in self.broken):
            raise LoadError(f"{command[-1]} could not be fetched: no network.")
        if command[0] == "npm":
            with tarfile.open(Path(folder) / "beta-1.0.tgz", "w:gz") as archive:
                for name in ("package/src/b.ts", "package/README.md", "../../outside.ts"):
                    member = tarfile.TarInfo(name)
                    member.size = 3
                    archive.addfile(member, io.BytesIO(b"abc"))
        else:
            with zipfile.ZipFile(Path(folder) / "alpha-1.0.whl", "w") as archive:
                for name in ("alpha/a.py", "alpha/data.bin", "../outside.py"):
                    archive.writestr(name, "abc")


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Registries:
    registries = Registries()
    monkeypatch.setattr(fetch, "_run", registries.run)
    return registries


def files_in(folder: Path) -> set[str]:
    own = (path for path in folder.iterdir() if path.name != "python" and path.is_dir())
    files = (file for package in own for file in package.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix() for file in files}


def say_nothing(fraction: float, detail: str) -> None:
    """Take progress."""


def test_only_source_files_come_out_and_all_of_them_inside(
    tmp_path: Path, registries: Registries
) -> None:
    fetch_corpus(LISTING, tmp_path / "corpus", say_nothing)
    assert files_in(tmp_path / "corpus") == {"alpha/alpha/a.py", "npm-scope-beta/package/src/b.ts"}
    assert not list(tmp_path.glob("outside*"))
    assert [command[-1] for command in registries.commands] == ["alpha==1.0", "@scope/beta@1.0"]
    assert (tmp_path / "corpus" / "python" / "json").is_dir()


def test_what_is_there_is_not_fetched_again(tmp_path: Path, registries: Registries) -> None:
    for _ in range(2):
        fetch_corpus(LISTING, tmp_path, say_nothing)
    assert len(registries.commands) == 2


def test_a_package_that_cannot_be_had_leaves_nothing_and_is_tried_again(
    tmp_path: Path, registries: Registries
) -> None:
    listing = Listing(pypi={f"alpha{at}": MIT for at in range(20)}, npm={})
    registries.broken = {"alpha7"}
    fetch_corpus(listing, tmp_path, say_nothing)
    assert not (tmp_path / "alpha7").exists()
    registries.broken = set()
    fetch_corpus(listing, tmp_path, say_nothing)
    assert (tmp_path / "alpha7").is_dir()


def test_many_missing_packages_are_an_error(tmp_path: Path, registries: Registries) -> None:
    registries.broken = {"alpha", "beta"}
    with pytest.raises(ConfigError, match="2 of 2 packages"):
        fetch_corpus(LISTING, tmp_path, say_nothing)


def test_only_held_out_packages_are_fetched_to_measure(
    tmp_path: Path, registries: Registries
) -> None:
    names = [f"package-{letter * 3}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    listing = Listing(pypi=dict.fromkeys(names, MIT), npm={})
    fetch_corpus(listing, tmp_path, say_nothing, only_held_out=True)
    fetched = [command[-1].removesuffix("==1.0") for command in registries.commands]
    assert fetched == [name for name in names if is_held_out(name)]


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="last-word"):
        fetch._run(["no-such-command", "last-word"], str(tmp_path))  # pyright: ignore[reportPrivateUsage]


def test_our_own_listing_is_permissive_and_holds_some_packages_of_each_registry_out() -> None:
    listing = read_listing()
    packages = {**listing.pypi, **listing.npm}
    for name, package in packages.items():
        assert any(word in package.licence for word in PERMISSIVE), name
        assert "GPL" not in package.licence, name
        assert "MPL" not in package.licence, name
    assert any(map(is_held_out, listing.pypi))
    assert any(map(is_held_out, map(npm_folder, listing.npm)))


def test_a_listing_that_is_damaged_is_named(tmp_path: Path) -> None:
    file = tmp_path / "corpus.toml"
    file.write_text("[pypi]\na = 1\n")
    with pytest.raises(ConfigError, match=r"corpus\.toml"):
        read_listing(file)
