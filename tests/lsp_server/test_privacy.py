"""Facts about which files may be read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from lsp_server.privacy import MAX_RULES_BYTES, RECHECK_S, FileRules


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a workspace, in a folder whose name counts for nothing."""
    folder = tmp_path / "secrets" / "project"
    (folder / "src").mkdir(parents=True)
    return folder


def is_ignored(project: Path, name: str, *patterns: str) -> bool:
    return bool(FileRules(patterns, [project]).why_ignored(project / name))


@pytest.mark.parametrize(
    "name",
    [
        ".env", ".env.local", "deploy/.ENV", "tls/server.pem", "Server.KEY", "a.p12", "a.pfx",
        "ca.crt", "id_rsa", "id_ed25519.pub", "secrets/db.py", "src/secrets.yaml", "secret.txt",
        ".aws/config", "credentials.json", ".netrc", ".npmrc", "k.jks", "infra/a.tfvars",
    ],
)  # fmt: skip
def test_secrets_are_ignored(project: Path, name: str):
    assert is_ignored(project, name)


@pytest.mark.parametrize("name", ["main.py", "src/keys.py", "environment.py", "monkey", "token.py"])
def test_code_is_not(project: Path, name: str):
    assert not is_ignored(project, name)


def test_patterns_of_the_settings_add_and_let_in(project: Path):
    assert is_ignored(project, "a.sql", "*.sql")
    assert is_ignored(project, "Dump.SQL", "*.sql")
    assert not is_ignored(project, "src/secrets.py", "!secrets.py")


def test_the_reason_names_the_rule(project: Path):
    (project / ".gitignore").write_text("# built\n/build/\n")
    rules = FileRules((), [project])
    assert rules.why_ignored(project / ".env.x") == "the pattern .env*"
    assert rules.why_ignored(project / "build" / "a.py") == ".gitignore: /build/"
    assert rules.why_ignored(project / "src" / "build" / "a.py") == ""


def test_nearer_ignore_files_have_the_last_word(project: Path):
    (project / ".gitignore").write_text("*.gen.py\n")
    (project / "src" / ".gitignore").write_text("!kept.gen.py\n")
    assert is_ignored(project, "src/a.gen.py")
    assert not is_ignored(project, "src/kept.gen.py")


def test_nothing_in_an_ignored_folder_is_let_in(project: Path):
    (project / ".gitignore").write_text("src/\n")
    (project / "src" / ".gitignore").write_text("!a.py\n")
    assert is_ignored(project, "src/a.py")


def test_ignore_files_above_the_workspace_count_in_a_repository(project: Path):
    (project / ".git").mkdir()
    (project / ".gitignore").write_text("*.gen.py\n")
    rules = FileRules((), [project / "src"])
    assert rules.why_ignored(project / "src" / "a.gen.py")


def test_what_git_ignores_can_be_let_in_but_not_what_we_are_told_to_ignore(project: Path):
    (project / ".gitignore").write_text("a.py\n")
    (project / ".specengineignore").write_text("b.py\n")
    rules = FileRules((), [project], uses_gitignore=False)
    assert not rules.why_ignored(project / "a.py")
    assert rules.why_ignored(project / "b.py") == ".specengineignore: b.py"


def test_link_to_a_secret_is_ignored(project: Path):
    (project / ".env").write_text("KEY=1")
    (project / "notes.txt").symlink_to(project / ".env")
    assert is_ignored(project, "notes.txt")


def test_link_out_of_the_workspace_is_outside(project: Path, tmp_path: Path):
    (tmp_path / "other.py").touch()
    (project / "link.py").symlink_to(tmp_path / "other.py")
    (project / "own.py").touch()
    rules = FileRules((), [project])
    assert rules.is_inside(project / "own.py")
    assert not rules.is_inside(project / "link.py")
    assert not rules.is_inside(project / ".." / "other.py")


def test_workspace_that_is_itself_a_link_holds_its_files(project: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(project)
    rules = FileRules((), [tmp_path / "link"])
    assert rules.is_inside(tmp_path / "link" / "a.py")
    assert rules.why_ignored(tmp_path / "link" / ".env")
    assert not rules.why_ignored(tmp_path / "link" / "a.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_ignore_file_that_cannot_be_read_forbids_all(project: Path):
    (project / ".specengineignore").touch(0o000)
    assert is_ignored(project, "a.py")


def test_ignore_file_that_is_too_long_forbids_all(project: Path, caplog: pytest.LogCaptureFixture):
    (project / ".gitignore").write_bytes(b"a\n" * (MAX_RULES_BYTES // 2 + 1))
    with caplog.at_level(logging.WARNING):
        assert is_ignored(project, "b.py")
    assert "all is ignored" in caplog.text


def test_ignore_file_that_is_a_pipe_or_folder_is_none(project: Path):
    os.mkfifo(project / ".gitignore")
    (project / ".specengineignore").mkdir()
    assert not is_ignored(project, "a.py")


def test_line_that_is_no_pattern_is_passed_over(project: Path):
    (project / ".gitignore").write_bytes(b"!\n\\\n[\n\xff\xfe\n*.x\n")
    assert is_ignored(project, "a.x")
    assert not is_ignored(project, "a.py")


def test_new_rule_is_seen_after_a_second(project: Path):
    clock = Clock()
    rules = FileRules((), [project], clock=clock)
    assert not rules.why_ignored(project / "a.py")
    (project / ".specengineignore").write_text("a.py\n")
    assert not rules.why_ignored(project / "a.py")
    clock.now_s = RECHECK_S
    assert rules.why_ignored(project / "a.py")


def test_file_outside_any_workspace_is_judged_by_its_own_folder(tmp_path: Path):
    rules = FileRules()
    assert rules.why_ignored(tmp_path / ".env")
    assert not rules.why_ignored(tmp_path / "a.py")
    assert not rules.is_inside(tmp_path / "a.py")


@pytest.mark.parametrize("name", [".ssh/config", ".aws/config", "secrets/deep/a.py"])
def test_folders_of_secrets_count_outside_any_workspace(project: Path, tmp_path: Path, name: str):
    home = tmp_path / "home"
    (home / name).parent.mkdir(parents=True)
    (home / name).write_text("")
    assert FileRules().why_ignored(home / name)
    (project / "link.py").symlink_to(home / name)
    assert is_ignored(project, "link.py")
