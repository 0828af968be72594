"""Facts about which other files a model gets to read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lsp_server.features.other_files import take_copied
from lsp_server.prompt import Budget
from lsp_server.settings import ContextSettings, PrivacySettings
from specengine.protocol import Complete
from tests.fake_engine import status
from tests.lsp_server.stage import Stage

MAIN = "from jobs import Queue\n\nqueue = Queue("
JOBS = "class Queue:\n    depth: int\n"
Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def play(
    tmp_path: Path,
    scene: Scene,
    *,
    reads_files: bool = True,
    context: ContextSettings | None = None,
    privacy: PrivacySettings | None = None,
) -> Stage:
    async def run() -> Stage:
        stage = Stage(tmp_path)
        stage.engine.status = msgspec.structs.replace(status(), reads_files=reads_files)
        stage.state.settings = replace(
            stage.state.settings,
            context=context or ContextSettings(),
            privacy=privacy or PrivacySettings(),
        )
        stage.state.folders = [tmp_path / "project"]
        stage.state.set_rules()
        async with asyncio.timeout(10):
            await stage.connect()
            await scene(stage)
            await stage.state.shut_down()
            await stage.engine.kill()
        return stage

    return asyncio.run(run())


async def asked(stage: Stage, file: Path, text: str = MAIN) -> Complete:
    """Return what the engine is asked at the end of a file that is opened now."""
    stage.open(text, file.as_uri())
    answer = stage.ask(text.count("\n"), len(text.rpartition("\n")[2]), file.as_uri())
    request = await stage.engine.next_request()
    request.answer("1)")
    await answer
    return request.message


async def files_of(stage: Stage, file: Path) -> tuple[tuple[str, str], ...]:
    return (await asked(stage, file)).files


def test_model_that_reads_files_gets_what_the_text_names(tmp_path: Path, project: Path):
    async def scene(stage: Stage) -> None:
        stage.open(JOBS, (project / "src" / "jobs.py").as_uri())
        message = await asked(stage, project / "main.py")
        assert message.files == (("src/jobs.py", JOBS),)
        assert message.prefix == MAIN

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("wish", "reads_files", "prefix"),
    [
        ("auto", False, MAIN),
        ("never", True, MAIN),
        ("always", False, f"# From jobs.py:\n# class Queue:\n#     depth: int\n#\n{MAIN}"),
    ],
)
def test_other_model_gets_none_unless_the_user_insists(
    tmp_path: Path, project: Path, wish: str, reads_files: bool, prefix: str
):
    async def scene(stage: Stage) -> None:
        stage.open(JOBS, (project / "jobs.py").as_uri())
        message = await asked(stage, project / "main.py")
        assert (message.files, message.prefix) == ((), prefix)

    play(tmp_path, scene, reads_files=reads_files, context=ContextSettings(other_files=wish))


def test_other_files_leave_this_one_its_share(tmp_path: Path, project: Path):
    """However much they have to say, and however short the limit is."""
    context = ContextSettings(max_prompt_tokens=400, files_share=0.25)
    above = "".join(f"name_{number} = {number}\n" for number in range(400))
    behind = "".join(f"other_{number} = {number}\n" for number in range(100))

    async def scene(stage: Stage) -> None:
        for number in range(8):
            file = project / f"jobs_{number}.py"
            members = "".join(f"    name_{n}: int\n" for n in range(100))
            stage.open(f"class Queue{number}:\n{members}", file.as_uri())
        file = project / "main.py"
        text = f"{above}Queue0(Queue1, Queue2, Queue3, "
        stage.open(f"{text})\n{behind}", file.as_uri())
        answer = stage.ask(400, len(text) - len(above), file.as_uri())
        request = await stage.engine.next_request()
        request.answer("1")
        await answer
        message = request.message
        budget = Budget.of_tokens(400, context.suffix_share)
        num_files = sum(len(path) + len(content) for path, content in message.files)
        assert num_files > 0
        assert message.prefix.endswith("\nQueue0(Queue1, Queue2, Queue3, ")
        assert len(message.prefix) > 0.75 * 0.4 * budget.prefix_chars
        assert message.suffix.startswith(")\nother_0 = 0\n")
        total = num_files + len(message.prefix) + len(message.suffix)
        assert total <= budget.prefix_chars + budget.suffix_chars

    play(tmp_path, scene, context=context)


def test_chosen_files_stay_while_the_user_types(tmp_path: Path, project: Path):
    """What is chosen anew would move all tokens behind it."""

    async def scene(stage: Stage) -> None:
        file = project / "main.py"
        jobs = (project / "jobs.py").as_uri()
        stage.open(JOBS, jobs)
        first = await asked(stage, file)
        stage.open("class Queue:\n    width: int\n", jobs)
        stage.insert(2, 14, "x", file.as_uri())
        answer = stage.ask(2, 15, file.as_uri())
        request = await stage.engine.next_request()
        request.answer(")")
        await answer
        assert request.message.files == first.files

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "name", [".env.py", "secrets.py", "id_rsa.py", "build/jobs.py", "private/jobs.py"]
)
def test_ignored_file_is_not_read(tmp_path: Path, project: Path, name: str):
    (project / ".gitignore").write_text("build/\n")
    (project / ".specengineignore").write_text("private\n")

    async def scene(stage: Stage) -> None:
        stage.open(JOBS, (project / name).as_uri())
        assert await files_of(stage, project / "main.py") == ()

    stage = play(tmp_path, scene)
    assert any("is not read" in line for line in stage.editor.lines)


def test_ignored_file_gets_no_suggestion(tmp_path: Path, project: Path):
    async def scene(stage: Stage) -> None:
        uri = (project / ".env").as_uri()
        stage.open("KEY=1\n", uri)
        result = await stage.ask(0, 5, uri)
        assert result is not None
        assert not result.items

    assert play(tmp_path, scene).exits == [("empty", "ignored_file")]


def test_file_outside_the_workspace_is_not_read(tmp_path: Path, project: Path):
    (tmp_path / "jobs.py").write_text(JOBS)
    (project / "link.py").symlink_to(tmp_path / "jobs.py")

    async def scene(stage: Stage) -> None:
        stage.open(JOBS, (tmp_path / "jobs.py").as_uri())
        stage.open(JOBS, (project / "link.py").as_uri())
        assert await files_of(stage, project / "main.py") == ()

    play(tmp_path, scene)


def test_file_outside_the_workspace_is_read_if_the_user_allows(tmp_path: Path, project: Path):
    async def scene(stage: Stage) -> None:
        stage.open(JOBS, (tmp_path / "jobs.py").as_uri())
        assert await files_of(stage, project / "main.py") == (("jobs.py", JOBS),)

    play(tmp_path, scene, privacy=PrivacySettings(read_outside=True))


def test_without_a_workspace_the_files_own_folder_is_one(tmp_path: Path, project: Path):
    async def scene(stage: Stage) -> None:
        stage.state.folders = []
        stage.state.set_rules()
        stage.open(JOBS, (project / "jobs.py").as_uri())
        stage.open(JOBS.replace("depth", "width"), (tmp_path / "other.py").as_uri())
        assert await files_of(stage, project / "main.py") == (("jobs.py", JOBS),)

    play(tmp_path, scene)


def test_without_a_workspace_a_link_to_itself_is_passed_over(tmp_path: Path, project: Path):
    (project / "loop.py").symlink_to(project / "loop.py")

    async def scene(stage: Stage) -> None:
        stage.state.folders = []
        stage.state.set_rules()
        stage.open("x = 1\n", (project / "loop.py").as_uri())
        stage.open(JOBS, (project / "jobs.py").as_uri())
        assert ("jobs.py", JOBS) in await files_of(stage, project / "main.py")

    play(tmp_path, scene)


def test_file_that_is_not_open_is_not_read(tmp_path: Path, project: Path):
    (project / "jobs.py").write_text(JOBS)

    async def scene(stage: Stage) -> None:
        assert await files_of(stage, project / "main.py") == ()

    play(tmp_path, scene)


def test_imported_file_is_read_if_the_user_allows(tmp_path: Path, project: Path):
    (project / "jobs.py").write_text(JOBS)

    async def scene(stage: Stage) -> None:
        assert await files_of(stage, project / "main.py") == (("jobs.py", JOBS),)

    play(tmp_path, scene, privacy=PrivacySettings(read_unopened=True))


@pytest.mark.parametrize("case", ["ignored", "link_out", "folder", "pipe"])
def test_imported_file_is_judged_before_it_is_read(tmp_path: Path, project: Path, case: str):
    import os

    jobs = project / "jobs.py"
    match case:
        case "ignored":
            jobs.write_text(JOBS)
            (project / ".gitignore").write_text("jobs.py\n")
        case "link_out":
            (tmp_path / "out.py").write_text(JOBS)
            jobs.symlink_to(tmp_path / "out.py")
        case "folder":
            jobs.mkdir()
        case _:
            os.mkfifo(jobs)

    async def scene(stage: Stage) -> None:
        assert await files_of(stage, project / "main.py") == ()

    play(tmp_path, scene, privacy=PrivacySettings(read_unopened=True))


def test_edited_place_of_another_file_is_told(tmp_path: Path, project: Path):
    async def scene(stage: Stage) -> None:
        uri = (project / "other.py").as_uri()
        stage.open("".join(f"line_{number}\n" for number in range(20)), uri)
        stage.insert(10, 7, " = new", uri)
        files = await files_of(stage, project / "main.py")
        assert files == (("other.py", "line_8\nline_9\nline_10 = new\nline_11\nline_12\n"),)

    play(tmp_path, scene)


def test_edited_place_of_the_file_itself_is_told_if_the_prompt_does_not_reach_it(
    tmp_path: Path, project: Path
):
    async def scene(stage: Stage) -> None:
        text = "".join(f"line_{number}\n" for number in range(3000)) + MAIN
        file = project / "main.py"
        stage.open(text, file.as_uri())
        stage.insert(10, 7, " = new", file.as_uri())
        stage.insert(2990, 9, " = near", file.as_uri())
        answer = stage.ask(3002, 14, file.as_uri())
        request = await stage.engine.next_request()
        request.answer(")")
        await answer
        lines = "line_8\nline_9\nline_10 = new\nline_11\nline_12\n"
        assert request.message.files == (("main.py", lines),)

    play(tmp_path, scene)


def test_copied_text_is_told_only_if_it_stands_in_a_file_that_may_be_read(
    tmp_path: Path, project: Path
):
    async def scene(stage: Stage) -> None:
        text = "one_line\ntwo_line\nthree_line\n"
        uri = (project / "other.py").as_uri()
        stage.open(text, uri)
        stage.open(text, (project / ".env").as_uri())
        take_copied(stage.state, uri, "a password\nof\nthree lines")
        assert stage.state.copied is None
        take_copied(stage.state, (project / ".env").as_uri(), text)
        assert stage.state.copied is None
        take_copied(stage.state, uri, text)
        assert await files_of(stage, project / "main.py") == (("other.py", text),)

    play(tmp_path, scene)
