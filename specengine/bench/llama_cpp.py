# pyright: standard
# xllamacpp ships no types that strict checking could use.
"""llama.cpp on a GGUF file, by the package ``xllamacpp`` or by a ``llama-server`` of the user's.

Either way it serves over HTTP on loopback and is asked there. The times are those that it has taken
itself, so that what HTTP costs is not held against it. torch is not imported here, nor is any part
of ours that would: the memory of this process is llama.cpp's.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from specengine.bench.contestants import Written
from specengine.bench.peer_process import Recipe
from specengine.errors import EngineUnavailable

PACKAGE: Final = "xllamacpp"
SERVER: Final = "llama-server"
INSTALL_HINT: Final = (
    "To compare with it: pip install 'specengine[peers]', or put llama-server on PATH."
)

PATTERN_TOKENS: Final = 3
DRAFT_TOKENS: Final = 10
"""Of ``ngram-simple``, the counterpart of prompt lookup: it looks for the last 3 tokens further up,
and drafts the 10 that stand behind them there. By default llama.cpp looks for 12 and drafts 48."""

NGRAM: Final = f"ngram_simple {DRAFT_TOKENS}"
"""What rows call it."""

LOG_SYSTEM_INFO: Final = 4
"""With fewer words newer versions leave that line out."""

SYSTEM_INFO: Final = "system_info"
"""Stands in the line of a program's log that tells what it was compiled to use."""

POLL_S: Final = 0.05
START_S: Final = 120.0
"""A program may load for so long."""
ANSWER_S: Final = 600.0
"""And write for so long: a large model reads 4,096 tokens on few cores."""

Asker = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class LlamaCppContestant:
    """llama.cpp, plain or with drafts."""

    engine = "llama.cpp"

    def __init__(self, ask: Asker, drafter: str) -> None:
        self._ask = ask
        self.drafter = drafter

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        """Continue a prompt, of which nothing is stored; the end token is never chosen.

        Raises:  EngineUnavailable.
        """
        answer = self._ask(_request(prompt_ids, num_tokens, cache_prompt=False))
        timings = answer["timings"]
        # The first token comes with the prompt, the others one a pass but for what was drafted.
        num_decoded = timings["predicted_n"] - 1
        accepted = timings.get("draft_n_accepted", 0)
        return Written(
            token_ids=tuple(answer["tokens"]),
            num_prompt=timings["prompt_n"],
            prefill_ms=timings["prompt_ms"],
            decode_ms=timings["predicted_ms"],
            num_decoded=num_decoded,
            passes=num_decoded - accepted,
            drafted=timings.get("draft_n", 0),
            accepted=accepted,
        )

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        """Return how long the first token takes when all but the last of the prompt is stored.

        Raises:  EngineUnavailable.
        """
        self._ask(_request(prompt_ids[:-1], 1, cache_prompt=True))
        return self._ask(_request(prompt_ids, 1, cache_prompt=True))["timings"]["prompt_ms"]


@contextmanager
def serving(recipe: Recipe) -> Generator[tuple[LlamaCppContestant, str, int | None]]:
    """Yield a contestant, what it was compiled to use, and the id of a process that was started.

    Raises:  EngineUnavailable.
    """
    if recipe.binary:
        with _server_program(recipe) as (ask, pid, features):
            yield LlamaCppContestant(ask, recipe.drafter), f"{SERVER} {features}".rstrip(), pid
        return
    package = importlib.import_module(PACKAGE)
    server = package.Server(_parameters(package, recipe))
    address = urlsplit(server.listening_address)
    ask = asking(str(address.hostname), int(address.port or 0))
    yield LlamaCppContestant(ask, recipe.drafter), _features(package.get_system_info()), None


def find_server() -> str | None:
    """Return what runs llama.cpp: "" is the package, else a program; None if there is neither."""
    if importlib.util.find_spec(PACKAGE) is not None:
        return ""
    return shutil.which(SERVER)


def asking(host: str, port: int) -> Asker:
    """Return a function that sends one request and waits for its answer.

    Raises:  EngineUnavailable, when called.
    """

    def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
        status, body = _http(host, port, "POST", "/completion", json.dumps(request))
        if status != http.client.OK:
            raise EngineUnavailable(f"llama.cpp answers {status}: {body[:200].decode()}.")
        return json.loads(body)

    return ask


def server_options(recipe: Recipe, manual: str) -> list[str]:
    """Return what a ``llama-server`` is started with; its manual says what its version knows.

    Raises:  EngineUnavailable when it cannot draft.
    """
    options = ["-m", recipe.model, "-c", str(recipe.context_tokens)]
    for name, value in (
        ("--threads", recipe.threads),
        ("--threads-batch", recipe.threads),
        ("--parallel", 1),
        ("--cache-ram", 0),
        ("--log-verbosity", LOG_SYSTEM_INFO),
    ):
        options += [name, str(value)] if name in manual else []
    if recipe.drafter == NGRAM:
        options += _drafting_options(manual)
    return options


def _drafting_options(manual: str) -> list[str]:
    for prefix in ("--spec-ngram-simple-size", "--spec-ngram-size"):
        if "ngram-simple" in manual and f"{prefix}-n" in manual:
            sizes = [f"{prefix}-n", str(PATTERN_TOKENS), f"{prefix}-m", str(DRAFT_TOKENS)]
            return ["--spec-type", "ngram-simple", *sizes]
    raise EngineUnavailable("this version does not draft by ngram-simple.")


def _request(prompt_ids: Sequence[int], num_tokens: int, *, cache_prompt: bool) -> dict[str, Any]:
    return {
        "prompt": list(prompt_ids),
        "n_predict": num_tokens,
        # Greedy, by the shortest way.
        "samplers": ["top_k"],
        "top_k": 1,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": cache_prompt,
        "return_tokens": True,
    }


def _parameters(package: Any, recipe: Recipe) -> Any:
    params = package.CommonParams()
    params.model.path = recipe.model
    params.n_ctx = recipe.context_tokens
    params.n_parallel = 1
    params.cache_ram_mib = 0  # else prompts of earlier requests come back from there
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = recipe.threads
    if recipe.drafter == NGRAM:
        kinds = package.common_speculative_type
        if not hasattr(kinds, "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE"):
            raise EngineUnavailable("this version does not draft by ngram-simple.")
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = PATTERN_TOKENS
        params.speculative.ngram_simple.size_m = DRAFT_TOKENS
    return params


def _features(info: str) -> str:
    """Return what is switched on, of a text like ``CPU : SSE3 = 1 | AVX512 = 0 | ``."""
    parts = [part.split("=") for part in info.rpartition(":")[2].split("|") if "=" in part]
    return " ".join(name.strip() for name, value in parts if value.strip() == "1")


@contextmanager
def _server_program(recipe: Recipe) -> Generator[tuple[Asker, int, str]]:
    manual = subprocess.run([recipe.binary, "--help"], capture_output=True, text=True, check=False)
    options = server_options(recipe, manual.stdout)
    host, port = "127.0.0.1", _free_port()
    command = [recipe.binary, *options, "--host", host, "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, (file := Path(folder, "log")).open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + START_S
        try:
            while not _is_ready(host, port):
                if process.poll() is not None:
                    raise EngineUnavailable(f"{recipe.binary} ended with {process.returncode}.")
                if time.monotonic() > deadline:
                    raise EngineUnavailable(f"{recipe.binary} is not ready after {START_S:.0f} s.")
                time.sleep(POLL_S)
            yield asking(host, port), process.pid, _told_features(file)
        finally:
            process.kill()
            process.wait()


def _told_features(log: Path) -> str:
    """Return the features of the line that a program prints of them when it starts."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    return _features(next((line for line in lines if SYSTEM_INFO in line), ""))


def _is_ready(host: str, port: int) -> bool:
    try:
        return _http(host, port, "GET", "/health", None, START_S)[0] == http.client.OK
    except EngineUnavailable:
        return False


def _http(
    host: str, port: int, method: str, path: str, body: str | None, timeout_s: float = ANSWER_S
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(f"llama.cpp does not answer: {error!r}.") from error
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]
