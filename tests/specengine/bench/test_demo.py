from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping

import pytest

from specengine.bench import demo
from specengine.bench.demo import SCENES, Stage
from specengine.bench.editor import Ghost, OnProgress
from specengine.bench.workloads import example_file


class FakeEditor:
    """Suggests the same text at every place, and keeps the document."""

    def __init__(self, suggestion: str) -> None:
        self.text = ""
        self.cursor = 0
        self._suggestion = suggestion
        self._num_requests = 0
        self._num_agreeing = 0

    async def wait_ready(self) -> None:
        pass

    def open(self, name: str, text: str, cursor: int) -> None:
        self.text, self.cursor = text, cursor

    def close(self) -> None:
        pass

    def type(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)
        self._num_agreeing = self._num_agreeing + 1 if len(text) == 1 else 0

    def delete(self, num_chars: int) -> None:
        start = self.cursor - num_chars
        self.text = self.text[:start] + self.text[self.cursor :]
        self.cursor = start

    async def suggest(self) -> Ghost:
        self._num_requests += 1
        return Ghost(self._suggestion[self._num_agreeing :], 12.0, self._num_requests)

    async def next_trace(self) -> str:
        kind = "cached" if self._num_agreeing else "shown"
        return f"#{self._num_requests} v1 python automatic block: {kind}"


@pytest.fixture
def _fake_editor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    @contextlib.asynccontextmanager
    async def start(
        settings: Mapping[str, object], on_progress: OnProgress
    ) -> AsyncGenerator[FakeEditor]:
        on_progress(0.5, "half of the model")
        yield FakeEditor(request.param)

    monkeypatch.setattr(demo, "start_editor", start)


@pytest.mark.usefixtures("_fake_editor")
@pytest.mark.parametrize("_fake_editor", ["return 1\n        + 2"], indirect=True)
def test_every_scene_shows_ghost_text_and_trace(capsys: pytest.CaptureFixture[str]):
    asyncio.run(Stage(has_colours=False).play())
    shown = capsys.readouterr().out
    for number, scene in enumerate(SCENES, 1):
        assert f"{number}. {scene.title}" in shown
    assert shown.count("<return 1>") == 2 * len(SCENES)
    assert shown.count("       | <        + 2>") == 2 * len(SCENES)
    assert shown.count("3 of 3 keys answered without the model") == len(SCENES)
    # The suggestion, three keys that agree, and one that does not: a line each.
    traces = [line for line in shown.splitlines() if line.startswith("  #")]
    assert len(traces) == 5 * len(SCENES)
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown


@pytest.mark.usefixtures("_fake_editor")
@pytest.mark.parametrize("_fake_editor", [""], indirect=True)
def test_model_without_an_idea_is_said_to_have_none(capsys: pytest.CaptureFixture[str]):
    asyncio.run(Stage(has_colours=False).play())
    assert capsys.readouterr().out.count("no suggestion after 12 ms") == 2 * len(SCENES)


@pytest.mark.usefixtures("_fake_editor")
@pytest.mark.parametrize("_fake_editor", ["return"], indirect=True)
def test_terminal_gets_colours_and_a_progress_line(capsys: pytest.CaptureFixture[str]):
    asyncio.run(Stage(has_colours=True).play())
    shown = capsys.readouterr().out
    assert "\r\x1b[K 50% half of the model" in shown
    assert "\x1b[36mreturn\x1b[0m" in shown


def test_scenes_fit_the_example_file():
    text = example_file().read_text("utf-8")
    assert all(text.count(scene.after) == 1 for scene in SCENES)
