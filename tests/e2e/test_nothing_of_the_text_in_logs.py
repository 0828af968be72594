"""Source text must not reach a log or the trace, whatever fails on its way."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from specengine.protocol import EngineState
from tests.fake_engine import FakeEngine, status

pytestmark = pytest.mark.e2e

MARK = "xyzzy"
"""Stands wherever text can stand."""

URI = "file:///project/main.py"
TEXT = f"{MARK} = 1\n{MARK}_2 = "
HERE = {"line": 1, "character": 10}
DOCUMENT = {"uri": URI, "version": 2}
CHANGES: list[object] = [
    [{"text": 5}],
    [{"range": {"start": MARK, "end": HERE}, "text": MARK}],
    [{"range": {"start": {"line": MARK, "character": 1}, "end": HERE}, "text": MARK}],
    [{"range": {"start": {"line": 10**40, "character": -1}, "end": HERE}, "text": MARK}],
    MARK,
    [{"range": {"start": HERE, "end": {"line": 0, "character": 0}}, "text": f"{MARK}\ud800"}],
    [{"type_name": MARK, "text": [MARK]}],
]


def message(method: str, params: object, number: object = None) -> dict[str, object]:
    sent: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    return sent if number is None else {**sent, "id": number}


def ask(number: int, position: object = HERE) -> dict[str, object]:
    params = {
        "textDocument": {"uri": URI},
        "position": position,
        "context": {"triggerKind": 2, "selectedCompletionInfo": None},
    }
    return message("textDocument/inlineCompletion", params, number)


def odd_messages() -> Iterator[dict[str, object]]:
    for changes in CHANGES:
        yield message(
            "textDocument/didChange", {"textDocument": DOCUMENT, "contentChanges": changes}
        )
    yield message("textDocument/didOpen", {"textDocument": {"uri": URI, "text": MARK}})
    yield message("textDocument/didOpen", {"textDocument": MARK})
    yield message("textDocument/didChange", {MARK: MARK})
    yield message("textDocument/inlineCompletion", {"textDocument": MARK, "position": MARK}, 50)
    yield ask(51, {"line": MARK, "character": MARK})
    yield ask(52, {"line": -(10**30), "character": 10**30})
    yield message("textDocument/completion", {"text": MARK}, 53)
    yield message("workspace/executeCommand", {"command": MARK, "arguments": [MARK]}, 54)
    yield message("specengine/didCopy", {"uri": URI, "text": MARK})
    yield message("specengine/didCopy", {"uri": [MARK], "text": {MARK: MARK}})
    yield message("textDocument/didShowCompletion", {"item": {"insertText": MARK}})
    yield message("notebookDocument/didOpen", {"cellTextDocuments": [{"text": MARK}]})
    yield message("workspace/didChangeConfiguration", {"settings": [1]})
    yield {"jsonrpc": "2.0", "id": 55, "result": MARK}
    yield {"jsonrpc": "2.0", "id": 56, "error": MARK}
    yield {MARK: MARK}


class Wire:
    """The bytes of a language server's pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers: dict[object, asyncio.Future[object]] = {}
        self.logged: list[str] = []

    def send(self, data: object) -> None:
        self.send_bytes(json.dumps(data).encode())

    def send_bytes(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def request(self, data: dict[str, object]) -> object:
        self.answers[data["id"]] = future = asyncio.get_running_loop().create_future()
        self.send(data)
        return await future

    async def listen(self) -> None:
        async for received in self._messages():
            if "method" in received or "error" in received:  # editors log errors
                self.logged.append(json.dumps(received))
            if (future := self.answers.pop(received.get("id"), None)) is not None:
                future.set_result(received)

    async def _messages(self) -> AsyncIterator[dict[str, object]]:
        assert self.process.stdout is not None
        length = 0
        while header := await self.process.stdout.readline():
            if header.lower().startswith(b"content-length"):
                length = int(header.split(b":")[1])
            elif header == b"\r\n":
                yield json.loads(await self.process.stdout.readexactly(length))


async def scene(wire: Wire, engine: FakeEngine, trace: Path) -> None:
    settings = {
        "engine": {"socket": str(engine.path)},
        "completion": {"maxDebounceMs": 0, "menu": True},
        "trace": {"path": str(trace)},
    }
    params = {"processId": None, "capabilities": {}, "initializationOptions": settings}
    await wire.request(message("initialize", params, "i"))
    wire.send(message("initialized", {}))
    item = {"uri": URI, "languageId": "python", "version": 1, "text": TEXT}
    wire.send(message("textDocument/didOpen", {"textDocument": item}))
    await engine.connected.wait()

    answer = asyncio.ensure_future(wire.request(ask(1)))
    (await engine.next_request()).answer(f"{MARK}(2)")
    assert MARK in json.dumps(await answer), "the editor gets the text"
    for odd in odd_messages():
        wire.send(odd)
    wire.send_bytes(b'{"jsonrpc": "2.0", "method": "xyzzy')
    wire.send_bytes(b"\xff\xfe" + MARK.encode())

    wire.send(message("textDocument/didOpen", {"textDocument": item}))
    answer = asyncio.ensure_future(wire.request(ask(2)))
    (await engine.next_request()).fail("internal_fault", "it broke.")
    await answer
    engine.send_status(status(EngineState.FAILED, "no memory"))
    wire.send(message("textDocument/didOpen", {"textDocument": item | {"text": TEXT + "y"}}))
    position = {"line": 1, "character": 11}
    answer = asyncio.ensure_future(wire.request(ask(3, position)))
    request = await engine.next_request()
    request.write(MARK)
    await engine.kill()
    await answer
    await wire.request(message("shutdown", None, "s"))
    wire.send(message("exit", None))


@pytest.mark.parametrize("level", ["warning", "info"])
def test_odd_failures_leave_no_text_behind(tmp_path: Path, level: str):
    trace = tmp_path / "trace.jsonl"

    async def run() -> tuple[Wire, str]:
        engine = FakeEngine(tmp_path / "s")
        await engine.listen()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "lsp_server.cli",
            "--log-level",
            level,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        wire = Wire(process)
        assert process.stderr is not None
        listening = asyncio.ensure_future(wire.listen())
        errors = asyncio.ensure_future(process.stderr.read())
        try:
            async with asyncio.timeout(30):
                await scene(wire, engine, trace)
                await process.wait()
                await listening
                return wire, (await errors).decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await engine.kill()

    wire, errors = asyncio.run(run())
    shown = "\n".join(wire.logged)
    assert "suggestion" in shown
    assert len(trace.read_text().splitlines()) >= 4
    for place, text in (("stderr", errors), ("messages", shown), ("trace", trace.read_text())):
        assert MARK not in text, f"{place}: {text[max(0, text.find(MARK) - 300) :][:600]}"
