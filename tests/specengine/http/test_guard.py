"""Who may ask: pages of others, names of others, and those without the key."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.datastructures import Headers

from specengine.errors import Refused
from specengine.http import guard
from specengine.http.guard import Rules, check
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.scripted import ScriptedEngine, writes

KEY = "a key of some length"


def refusal(rules: Rules, path: str = "/infill", **headers: str) -> int:
    """Return the status of a refusal; 0 if there is none."""
    given = {"host": "127.0.0.1:8012", **headers}
    names = {name.replace("_", "-"): value for name, value in given.items()}
    try:
        check(rules, path, Headers(names))
    except Refused as error:
        return error.status
    return 0


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:1", "localhost:8012", "LOCALHOST", "[::1]:8012", "127.9.9.9"],
)
def test_this_machine_s_own_names_are_taken_with_any_port(host: str) -> None:
    assert refusal(Rules(), host=host) == 0


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8012", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("", "10.0.0.1", "[::2]", "[", "127.0.0.1@evil.example", "0.0.0.0", "[::ffff:10.0.0.1]"),
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    assert refusal(Rules(), host=host) == 403


def test_beyond_this_machine_any_name_is_taken_and_the_key_decides() -> None:
    rules = Rules("0.0.0.0", KEY)
    assert refusal(rules, host="box.example") == 401
    assert refusal(rules, host="box.example", authorization=f"Bearer {KEY}") == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:9999"},
        {"origin": ""},
        {"origin": "file://"},
        {"origin": "http://["},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "navigate"},
    ],
)
@pytest.mark.parametrize("path", ["/infill", "/metrics", "/health", "/page/texts"])
def test_pages_of_other_origins_are_refused(headers: dict[str, str], path: str) -> None:
    assert refusal(Rules(), path, **headers) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8012", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
    ],
)
def test_programs_and_the_page_itself_are_answered(headers: dict[str, str]) -> None:
    assert refusal(Rules(), **headers) == 0


def test_a_link_may_lead_to_the_page() -> None:
    assert refusal(Rules(), "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 0
    assert refusal(Rules(), "/", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {KEY}"}, 0),
        ({"authorization": f"bearer  {KEY}"}, 0),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": "Bearer é"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x_api_key": KEY}, 0),
    ],
)
def test_the_key_is_needed_where_there_is_one(headers: dict[str, str], status: int) -> None:
    assert refusal(Rules(api_key=KEY), **headers) == status


def test_the_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, own: bytes) -> bool:
        compared.append((given, own))
        return False

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    assert refusal(Rules(api_key=KEY), authorization=f"Bearer {KEY}") == 401
    assert compared == [(KEY.encode(), KEY.encode())]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/health"])
def test_probes_and_the_page_need_no_key(path: str) -> None:
    assert refusal(Rules(api_key=KEY), path) == 0


def test_refusals_are_json_and_the_engine_hears_nothing(play: Play) -> None:
    engine = ScriptedEngine(writes("x"))

    async def scene(port: int) -> None:
        body: dict[str, Any] = {"prompt": "x"}
        for headers, status in (
            ({"host": "evil.example"}, 403),
            ({"origin": "http://evil.example"}, 403),
            ({"content_type": "text/plain"}, 415),
            ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ):
            answer = await raw.post(port, "/v1/completions", body, **headers)
            assert answer.status == status
            assert answer.json["error"]["message"]
        assert not engine.jobs

    play(scene, engine)


def test_a_refusal_never_repeats_the_key(play: Play) -> None:
    async def scene(port: int) -> None:
        answer = await raw.get(port, "/metrics", authorization=f"Bearer {KEY}x")
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "bearer"
        assert KEY.encode() not in answer.body

    play(scene, ScriptedEngine(), Rules(api_key=KEY))


def test_no_answer_allows_other_origins_to_read_it(play: Play) -> None:
    async def scene(port: int) -> None:
        answer = await raw.get(port, "/health")
        assert not [name for name in answer.headers if name.startswith("access-control")]

    play(scene, ScriptedEngine())
