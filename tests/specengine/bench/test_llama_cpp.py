from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from specengine.bench import llama_cpp
from specengine.bench.llama_cpp import NGRAM, LlamaCppContestant, asking, server_options, serving
from specengine.bench.peer_process import PeerProcess, Recipe
from specengine.errors import EngineUnavailable
from tests.specengine.models.tiny_gguf import TinyGguf

RECIPE = Recipe("llama.cpp", "Q4_1", "none", "/model.gguf", 2, 512)
TIMINGS = {"prompt_n": 3, "prompt_ms": 6.0, "predicted_n": 8, "predicted_ms": 14.0}
NEW_MANUAL = """
--threads N --threads-batch N --parallel N --cache-ram N --log-verbosity N
--spec-type none,ngram-cache,ngram-simple --spec-ngram-simple-size-n N --spec-ngram-simple-size-m N
"""
SERVER = """#!{python}
import http.server, json, sys, threading

if "--help" in sys.argv:
    print("--threads N --parallel N")
    sys.exit()
if "/broken.gguf" in sys.argv:
    sys.exit(3)
if "/endless.gguf" in sys.argv:
    threading.Event().wait()
print("system_info: n_threads = 2 (of 2) | CPU : SSE3 = 1 | AMX_INT8 = 0 | AVX512 = 1 | ")
sys.stdout.flush()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{"status": "ok"}})

    def do_POST(self):
        wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if wish["n_predict"] > 8:
            self.answer(400, {{"error": "too many"}})
            return
        timings = {timings}
        self.answer(200, {{"tokens": [9] * wish["n_predict"], "timings": timings}})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def recording(
    answers: list[Mapping[str, Any]], requests: list[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
        requests.append(request)
        return answers[len(requests) - 1]

    return ask


def test_times_are_its_own_and_passes_follow_from_what_was_accepted() -> None:
    drafted = {**TIMINGS, "draft_n": 10, "draft_n_accepted": 4}
    requests: list[Mapping[str, Any]] = []
    ask = recording([{"tokens": [5] * 8, "timings": drafted}], requests)
    written = LlamaCppContestant(ask, NGRAM).write([1, 2, 3], 8)
    assert written.token_ids == (5,) * 8
    assert (written.num_prompt, written.prefill_ms, written.decode_ms) == (3, 6.0, 14.0)
    assert (written.num_decoded, written.passes) == (7, 3)
    assert (written.drafted, written.accepted) == (10, 4)
    assert requests[0]["prompt"] == [1, 2, 3]
    assert requests[0]["ignore_eos"] is True
    assert requests[0]["cache_prompt"] is False


def test_plain_decoding_writes_one_token_a_pass() -> None:
    ask = recording([{"tokens": [5] * 8, "timings": TIMINGS}], [])
    written = LlamaCppContestant(ask, "none").write([1, 2, 3], 8)
    assert written.num_decoded == written.passes == 7
    assert (written.drafted, written.accepted) == (0, 0)


def test_prompt_is_stored_before_it_is_gone_on_from() -> None:
    requests: list[Mapping[str, Any]] = []
    timings: list[Mapping[str, Any]] = [{"timings": {"prompt_ms": ms}} for ms in (100.0, 2.0)]
    assert LlamaCppContestant(recording(timings, requests), "none").resume_ms([1, 2, 3]) == 2.0
    assert [request["prompt"] for request in requests] == [[1, 2], [1, 2, 3]]
    assert [request["cache_prompt"] for request in requests] == [True, True]


def test_program_is_told_only_what_its_version_knows() -> None:
    new = server_options(RECIPE, NEW_MANUAL)
    assert new[:4] == ["-m", "/model.gguf", "-c", "512"]
    assert new[4:] == [
        *("--threads", "2", "--threads-batch", "2", "--parallel", "1", "--cache-ram", "0"),
        *("--log-verbosity", "4"),
    ]
    assert "--cache-ram" not in server_options(RECIPE, "--threads N")


def test_drafting_options_have_had_two_names() -> None:
    recipe = Recipe("llama.cpp", "Q4_1", NGRAM, "/model.gguf", 2, 512)
    new = server_options(recipe, NEW_MANUAL)
    assert new[-6:] == [
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "10"),
    ]
    old = NEW_MANUAL.replace("ngram-simple-size", "ngram-size")
    assert server_options(recipe, old)[-4:] == [
        *("--spec-ngram-size-n", "3", "--spec-ngram-size-m", "10")
    ]
    with pytest.raises(EngineUnavailable, match="does not draft"):
        server_options(recipe, "--threads N")


def test_nobody_at_the_door_is_an_error_of_ours() -> None:
    with pytest.raises(EngineUnavailable, match="does not answer"):
        asking("127.0.0.1", 1)({})


def test_package_comes_before_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert llama_cpp.find_server() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert llama_cpp.find_server() == "/bin/llama-server"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert llama_cpp.find_server() is None


class FakeKinds:
    COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE = 6


class Fields:
    """Takes any value under any name; what it was not given is fields again."""

    def __getattr__(self, name: str) -> Any:
        value = Fields()
        setattr(self, name, value)
        return value


class FakePackage:
    """As much of xllamacpp as is used."""

    CommonParams = Fields
    common_speculative_type: Any = FakeKinds
    params: Any = None

    class Server:
        listening_address = "http://127.0.0.1:7"

        def __init__(self, params: Any) -> None:
            FakePackage.params = params

    @staticmethod
    def get_system_info() -> str:
        return "CPU : SSE3 = 1 | AVX512 = 0 | AVX2 = 1 | "


@pytest.fixture
def _fake_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp.importlib, "import_module", lambda name: FakePackage)


@pytest.mark.usefixtures("_fake_package")
def test_package_gets_threads_room_and_ways_to_draft() -> None:
    recipe = Recipe("llama.cpp", "Q4_1", NGRAM, "/model.gguf", 2, 512)
    with serving(recipe) as (contestant, build, pid):
        assert (contestant.drafter, build, pid) == (NGRAM, "SSE3 AVX2", None)
    params = FakePackage.params
    assert params.model.path == "/model.gguf"
    assert (params.n_ctx, params.n_parallel, params.cache_ram_mib) == (512, 1, 0)
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 2
    assert params.speculative.types == [6]
    assert (params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m) == (
        3,
        10,
    )


@pytest.mark.usefixtures("_fake_package")
def test_package_that_cannot_draft_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePackage, "common_speculative_type", object())
    recipe = Recipe("llama.cpp", "Q4_1", NGRAM, "/model.gguf", 2, 512)
    with pytest.raises(EngineUnavailable, match="does not draft"), serving(recipe):
        pass


@pytest.fixture
def server_program(tmp_path: Path) -> str:
    """Return a program that behaves as llama-server does."""
    file = tmp_path / "llama-server"
    file.write_text(SERVER.format(python=f"{sys.executable} -IS", timings=TIMINGS), "utf-8")
    file.chmod(0o700)
    return str(file)


@pytest.mark.e2e
def test_program_is_started_asked_and_ended(server_program: str) -> None:
    recipe = Recipe("llama.cpp", "Q4_1", "none", "/model.gguf", 2, 512, binary=server_program)
    with serving(recipe) as (contestant, build, pid):
        assert contestant.write([1, 2, 3], 8).token_ids == (9,) * 8
        with pytest.raises(EngineUnavailable, match=r"answers 400.*too many"):
            contestant.write([1, 2, 3], 9)
        assert build == "llama-server SSE3 AVX512"
        assert pid is not None
    with pytest.raises(EngineUnavailable, match="does not answer"):
        contestant.write([1, 2, 3], 8)


@pytest.mark.e2e
def test_program_that_ends_at_once_is_told_of(server_program: str) -> None:
    recipe = Recipe("llama.cpp", "Q4_1", "none", "/broken.gguf", 2, 512, binary=server_program)
    with pytest.raises(EngineUnavailable, match="ended with 3"), serving(recipe):
        pass


@pytest.mark.e2e
def test_program_that_never_gets_ready_is_ended(
    server_program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "START_S", 0.2)
    recipe = Recipe("llama.cpp", "Q4_1", "none", "/endless.gguf", 2, 512, binary=server_program)
    with pytest.raises(EngineUnavailable, match="is not ready after"), serving(recipe):
        pass


@pytest.mark.e2e
def test_process_says_why_it_does_not_start(server_program: str) -> None:
    recipe = Recipe("llama.cpp", "Q4_1", NGRAM, "/model.gguf", 2, 512, binary=server_program)
    with pytest.raises(EngineUnavailable, match="does not draft"):
        PeerProcess(recipe)


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is missing")
@pytest.mark.parametrize("drafter", ["none", NGRAM])
def test_real_llama_cpp_reads_and_writes_all_that_it_is_asked_for(
    tmp_path: Path, drafter: str
) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")
    peer = PeerProcess(Recipe("llama.cpp", "F32", drafter, str(file), 1, 256))
    try:
        prompt = [20, 21, 22, 23] * 10
        written = peer.write(prompt, 16)
        assert len(written.token_ids) == 16
        assert written.num_prompt == len(prompt)
        assert written.passes + written.accepted == written.num_decoded == 15
        assert peer.resume_ms(prompt) > 0
        assert peer.write(prompt, 16).num_prompt == len(prompt)
        assert "AVX" in peer.build or "NEON" in peer.build
    finally:
        peer.close()
