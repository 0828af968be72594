"""Which files may be read: rules on names, ignore files, and the borders of the workspace.

A rule is a line as in .gitignore. What it forbids is forbidden to the file's links, too. It knows
paths only, neither documents nor their text.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

logger = logging.getLogger(__name__)

ALWAYS_IGNORED: Final = (
    ".env*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.p8",
    "*.ppk",
    "*.asc",
    "*.gpg",
    "*.jks",
    "*.keystore",
    "*.crt",
    "*.cer",
    "*.der",
    "*.kdbx",
    "*.ovpn",
    "*.tfvars",
    "*.tfstate",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "secret",
    "secrets",
    "secret.*",
    "secrets.*",
    "credentials",
    "credentials.*",
    ".netrc",
    "_netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".htpasswd",
    ".git-credentials",
    ".ssh",
    ".gnupg",
    ".aws",
)
"""Secrets, keys and certificates. These, and the settings' own patterns, mean any case of letters;
``!PATTERN`` in the settings lets one in."""

OWN_FILE: Final = ".specengineignore"
GIT_FILE: Final = ".gitignore"
MAX_RULES_BYTES: Final = 2**20
"""A longer ignore file forbids all that it stands above, as one that cannot be read does."""

RECHECK_S: Final = 1.0
"""So long a verdict holds before files are looked at again."""

MAX_VERDICTS: Final = 4096
_MAX_LEVELS: Final = 64
_FORBID_ALL: Final = GitIgnoreSpec.from_lines(["*"])


@dataclass(frozen=True)
class _Rules:
    """Lines of one place, which count from its folder."""

    name: str
    folder: Path
    spec: GitIgnoreSpec


class FileRules:
    """Says of a path whether it may be read, and if not, by which rule."""

    def __init__(
        self,
        patterns: Sequence[str] = (),
        folders: Sequence[Path] = (),
        *,
        uses_gitignore: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the user's own patterns, and the folders of the workspace."""
        self.folders = tuple(Path(os.path.abspath(folder)) for folder in folders)
        self._real_folders = tuple(Path(os.path.realpath(folder)) for folder in folders)
        self._own = spec_of(line.lower() for line in (*ALWAYS_IGNORED, *patterns))
        self._names = (OWN_FILE, GIT_FILE, ".git/info/exclude") if uses_gitignore else (OWN_FILE,)
        self._clock = clock
        self._verdicts: dict[str, tuple[float, str]] = {}
        self._specs: dict[Path, tuple[tuple[int, ...], GitIgnoreSpec]] = {}

    def why_ignored(self, path: Path) -> str:
        """Return the rule that forbids a file or what it links to; empty if none does."""
        key, now_s = str(path), self._clock()
        until_s, reason = self._verdicts.get(key, (now_s, ""))
        if until_s <= now_s:
            named, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
            reason = self._judge(named) or (self._judge(real) if real != named else "")
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = (now_s + RECHECK_S, reason)
        return reason

    def is_inside(self, path: Path) -> bool:
        """Whether a file, and what it links to, lies in the workspace."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(folder) for folder in self._real_folders)

    def _judge(self, path: Path) -> str:
        base = self._base(path)
        relative = path.relative_to(base or path.anchor).as_posix()
        match = self._own.check_file(relative.lower())
        if match.include:
            return f"the pattern {_pattern(self._own, match.index)}"
        above: list[_Rules] = []
        folder = base or path.parent
        parts = path.relative_to(folder).parts
        for part in parts:
            above += self._rules_in(folder)
            folder /= part
            # git, too, does not look into a folder that is ignored: nothing in it can be let in.
            suffix = "" if folder == path else "/"
            if reason := _last_word(above, folder, suffix):
                return reason
        return ""

    def _base(self, path: Path) -> Path | None:
        """Return the folder that names are counted from: the repository's, or the workspace's.

        None for a file in neither: the names of all its folders count.
        """
        own = [folder for folder in (*self.folders, *self._real_folders) if _holds(folder, path)]
        top = next((folder for folder in list(path.parents)[:_MAX_LEVELS] if _is_top(folder)), None)
        inner = max(own, key=lambda folder: len(folder.parts), default=None)
        candidates = [folder for folder in (top, inner) if folder is not None]
        return min(candidates, key=lambda folder: len(folder.parts), default=None)

    def _rules_in(self, folder: Path) -> Iterator[_Rules]:
        for name in self._names:
            spec = self._spec(folder / name)
            if spec is not None:
                yield _Rules(name, folder, spec)

    def _spec(self, file: Path) -> GitIgnoreSpec | None:
        try:
            found = file.stat()
        except OSError:
            self._specs.pop(file, None)
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        version = (found.st_mtime_ns, found.st_size, found.st_ino)
        known, spec = self._specs.get(file, ((), _FORBID_ALL))
        if known != version:
            spec = _read_spec(file, found.st_size)
            self._specs[file] = (version, spec)
        return spec


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """Return the rules in lines; as git does, it passes over a line that is no pattern."""
    good: list[str] = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            logger.info("an ignore pattern is none and is passed over")
        else:
            good.append(line)
    return GitIgnoreSpec.from_lines(good)


def _read_spec(file: Path, num_bytes: int) -> GitIgnoreSpec:
    if num_bytes > MAX_RULES_BYTES:
        logger.warning("%s is longer than %d bytes: all is ignored", file, MAX_RULES_BYTES)
        return _FORBID_ALL
    try:
        return spec_of(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        logger.warning("%s cannot be read, so all is ignored: %s", file, error.strerror)
        return _FORBID_ALL


def _last_word(above: Sequence[_Rules], path: Path, suffix: str) -> str:
    for rules in reversed(above):
        match = rules.spec.check_file(path.relative_to(rules.folder).as_posix() + suffix)
        if match.include is not None:
            word = f"{rules.name}: {_pattern(rules.spec, match.index)}"
            return word if match.include else ""
    return ""


def _pattern(spec: GitIgnoreSpec, index: int | None) -> str:
    pattern = list(spec.patterns)[index] if index is not None else None
    return str(getattr(pattern, "pattern", ""))


def _holds(folder: Path, path: Path) -> bool:
    return path != folder and path.is_relative_to(folder)


def _is_top(folder: Path) -> bool:
    return (folder / ".git").exists()
