"""Which path is answered by what."""

from __future__ import annotations

import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specengine.errors import Refused
from specengine.http import llama, openai, state
from specengine.http.asking import Answering, Desk
from specengine.http.body import read_json
from specengine.http.endpoint import Endpoint
from specengine.http.guard import Guard, Rules
from specengine.http.problems import NOTHING_SNIFFED, answer_error, answer_json
from specengine.journal import Journal
from specengine.metrics import Metrics
from specengine.models.registry import FimTemplate

PAGE: Final = files("specengine.http").joinpath("page.html").read_bytes()


class TextsWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``/page/texts``."""

    keep: bool


def build(
    engine: Answering,
    journal: Journal,
    metrics: Metrics,
    rules: Rules,
    templates: Sequence[FimTemplate],
) -> Starlette:
    """Return the application of one engine."""
    desk = Desk(engine)
    completions = openai.Completions(desk, templates)
    llama_cpp = llama.Llama(desk, templates)
    started = int(time.time())

    def card() -> Mapping[str, object]:
        return openai.model_card(engine.model, started, engine.settings.context_tokens)

    async def health(request: Request) -> Response:
        status, body = state.health(engine)
        return answer_json(body, status)

    async def models(request: Request) -> Response:
        return answer_json({"object": "list", "data": [card()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != engine.model:
            raise Refused(
                f"there is no model {name[:100]!a}.",
                hint=f"The one that runs is {engine.model}.",
                reason="model_not_found",
                status=404,
            )
        return answer_json(card())

    async def props(request: Request) -> Response:
        return answer_json(llama_cpp.props())

    async def show_metrics(request: Request) -> Response:
        content, kind = metrics.render()
        return Response(content, headers={**NOTHING_SNIFFED, "content-type": kind})

    async def page(request: Request) -> Response:
        return Response(PAGE, headers={**NOTHING_SNIFFED, **PAGE_HEADERS}, media_type="text/html")

    async def page_state(request: Request) -> Response:
        return answer_json(state.page_state(engine, journal))

    async def texts(request: Request) -> Response:
        wanted = await read_json(request.scope, request.receive, TextsWanted)
        if wanted.keep:
            journal.keep_texts()
        else:
            journal.forget_texts()
        return answer_json({"keep": journal.keeps_texts})

    infill = Endpoint(llama_cpp, llama.InfillBody)
    completion = Endpoint(llama_cpp, llama.CompletionBody)
    post = ["POST"]
    return Starlette(
        routes=[
            Route("/v1/completions", Endpoint(completions, openai.CompletionBody), methods=post),
            Route("/infill", infill, methods=post),
            Route("/completion", completion, methods=post),
            Route("/completions", completion, methods=post),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/models", models),
            Route("/props", props),
            Route("/health", health),
            Route("/v1/health", health),
            Route("/metrics", show_metrics),
            Route("/", page),
            Route("/page/state", page_state),
            Route("/page/texts", texts, methods=post),
        ],
        middleware=[Middleware(Guard, rules=rules)],
        exception_handlers={HTTPException: _unknown, Refused: _refused},
    )


def _page_headers() -> dict[str, str]:
    """Return what lets the page run its own script and style, reach this engine, and no more."""
    scripts = _hashes(rb"<script>(.*?)</script>")
    styles = _hashes(rb"<style>(.*?)</style>")
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"content-security-policy": policy, "referrer-policy": "no-referrer"}


def _hashes(part: bytes) -> str:
    found = re.findall(part, PAGE, re.DOTALL)
    return " ".join(
        f"'sha256-{b64encode(hashlib.sha256(each).digest()).decode()}'" for each in found
    )


PAGE_HEADERS: Final = _page_headers()


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]} is nothing that this engine answers."
    response = answer_error(Refused(what, reason="not_found", status=error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answer_error(error)
