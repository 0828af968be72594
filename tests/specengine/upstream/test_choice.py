"""Facts about choosing a server."""

from __future__ import annotations

import pytest

from specengine.upstream.choice import MAX_BUSIER, choose
from specengine.upstream.options import UpstreamOptions
from specengine.upstream.server import Server


@pytest.fixture
def servers() -> list[Server]:
    options = UpstreamOptions(("http://127.0.0.1:1", "http://127.0.0.1:2"))
    return [Server(url, options, lambda: 0.0) for url in options.urls]


def test_quickest_of_the_least_busy_is_chosen(servers: list[Server]):
    first, second = servers
    first.first_text_s, second.first_text_s = 0.2, 0.1
    assert choose(servers) is second
    second.active = 1
    assert choose(servers) is first


def test_document_stays_where_its_prompt_is_stored(servers: list[Server]):
    first, second = servers
    first.active = MAX_BUSIER
    assert choose(servers, last=first) is first
    first.active += 1
    assert choose(servers, last=first) is second


def test_document_leaves_a_server_that_fails(servers: list[Server]):
    first, second = servers
    first.breaker.fail()
    assert choose(servers, last=first) is second


def test_server_that_just_failed_is_asked_again_only_if_it_is_the_only_one(servers: list[Server]):
    first, second = servers
    assert choose(servers, avoided=first) is second
    second.breaker.fail(is_final=True)
    assert choose(servers, avoided=first) is first


def test_nobody_is_chosen_where_nobody_may_be_asked(servers: list[Server]):
    for server in servers:
        server.breaker.rest(1)
    assert choose(servers, last=servers[0], avoided=servers[1]) is None
    assert choose([]) is None
