"""Health, numbers and the page's data."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from specengine.engine import Engine
from specengine.http import app
from specengine.http.guard import Rules
from specengine.journal import Journal
from specengine.protocol import EngineState, PhaseTimes, TokenCounts
from specengine.record import Record
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.scripted import ScriptedEngine

RECORD = Record(
    100.0, 0, "length", "suffix", PhaseTimes(total=5.0), TokenCounts(), 2, {}, "secret", "text"
)


def test_health_is_ok_when_the_model_answers(play: Play) -> None:
    async def scene(port: int) -> None:
        answer = await raw.get(port, "/health")
        assert answer.status == 200
        assert answer.json["status"] == "ok"
        assert answer.json["switched_off"] == answer.json["alarms"] == []

    play(scene, ScriptedEngine())


def test_health_says_that_the_model_loads(play: Play) -> None:
    async def scene(port: int) -> None:
        answer = await raw.get(port, "/health")
        assert answer.status == 503
        assert answer.json["status"] == "loading model"
        assert answer.json["detail"] == "reading tiny"

    play(scene, ScriptedEngine(state=EngineState.LOADING))


def test_health_says_what_is_off_and_why(play: Play) -> None:
    engine = ScriptedEngine()
    engine.watch.switch_off("drafter", "suffix", "it is slow", pause_s=60)

    async def scene(port: int) -> None:
        answer = await raw.get(port, "/health")
        (off,) = answer.json["switched_off"]
        assert (off["kind"], off["name"], off["reason"]) == ("drafter", "suffix", "it is slow")

    play(scene, engine)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
def test_metrics_keep_their_names_whatever_the_scraper_likes_best(
    play: Play, tiny_engine: Engine, accept: str
) -> None:
    """The library's other formats write underscores for colons, unless told not to."""

    async def scene(port: int) -> None:
        answer = await raw.get(port, "/metrics", accept=accept)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"\nspecengine:num_requests_running 0.0" in answer.body
        assert b"specengine_" not in answer.body

    play(scene, tiny_engine)


def test_the_page_may_run_its_own_script_and_reach_its_own_engine_only(play: Play) -> None:
    async def scene(port: int) -> None:
        answer = await raw.get(port, "/")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        (script,) = re.findall(rb"<script>(.*?)</script>", answer.body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode().lower()
        assert f"script-src 'sha256-{digest}'" in policy  # the helper lowers headers
        assert answer.headers["x-content-type-options"] == "nosniff"

    play(scene, ScriptedEngine())


def test_the_page_names_no_other_place() -> None:
    assert not re.search(rb"(src|href|action)\s*=\s*[\"']?(https?:)?//", app.PAGE)
    assert b"@import" not in app.PAGE
    assert b"innerHTML" not in app.PAGE


def test_texts_are_shown_only_while_that_is_wanted(play: Play) -> None:
    journal = Journal()

    async def scene(port: int) -> None:
        journal.add(RECORD)
        assert b"secret" not in (await raw.get(port, "/page/state")).body
        answer = await raw.post(port, "/page/texts", {"keep": True})
        assert answer.json == {"keep": True}
        journal.add(RECORD)
        assert b"secret" in (await raw.get(port, "/page/state")).body
        await raw.post(port, "/page/texts", {"keep": False})
        assert b"secret" not in (await raw.get(port, "/page/state")).body

    play(scene, ScriptedEngine(), journal=journal)


def test_the_page_s_data_needs_the_key_and_the_page_does_not(play: Play) -> None:
    key = "a key of some length"

    async def scene(port: int) -> None:
        assert (await raw.get(port, "/")).status == 200
        assert (await raw.get(port, "/page/state")).status == 401
        answer = await raw.get(port, "/page/state", authorization=f"Bearer {key}")
        assert answer.status == 200

    play(scene, ScriptedEngine(), Rules(api_key=key))


def test_the_page_s_data_has_the_engine_s_facts(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        await raw.post(port, "/infill", {"prompt": "def f(self):\n    x", "n_predict": 2})
        state = (await raw.get(port, "/page/state")).json
        assert state["facts"]["precision"] == "float32"
        assert sum(num_rows for num_rows, _ in state["facts"]["slots"]) > 0
        assert state["process_bytes"] > 10**6
        assert state["health"]["model"] == tiny_engine.model

    play(scene, tiny_engine)
