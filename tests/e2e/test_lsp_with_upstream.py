"""The real language server as a process, in front of a server upstream that does as told."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.scripted_upstream import Answer, ScriptedUpstream, text, written

pytestmark = pytest.mark.e2e

URI = "file:///project/main.py"
TEXT = "def add(a, b):\n    \n\n\nprint(add(1, 2))\n"
USAGE = {"prompt_tokens": 30, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}}


class Editor:
    """A client with one document open."""

    def __init__(self, folder: Path) -> None:
        self.client = LanguageClient("test", "1")
        self.trace_path = folder / "trace.jsonl"

    async def start(self, upstream: dict[str, Any]) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "error", "THE_KEY": "sk-1"}
        await self.client.start_io(sys.executable, "-m", "lsp_server.cli", env=environment)
        settings = {
            "engine": {"backend": "upstream"},
            "upstream": {"keyVariable": "THE_KEY", "localFallback": False, **upstream},
            "completion": {"maxDebounceMs": 0, "lookAhead": False},
            "trace": {"path": str(self.trace_path)},
        }
        await self.client.initialize_async(
            types.InitializeParams(types.ClientCapabilities(), initialization_options=settings)
        )
        self.client.initialized(types.InitializedParams())
        item = types.TextDocumentItem(URI, "python", 1, TEXT)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    async def ask(self, line: int, character: int) -> str:
        """Return the suggestion at a place; empty without any."""
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
            types.TextDocumentIdentifier(URI),
            types.Position(line, character),
        )
        answer = await self.client.text_document_inline_completion_async(params)
        items = answer.items if isinstance(answer, types.InlineCompletionList) else answer
        return str(items[0].insert_text) if items else ""

    def type(self, line: int, character: int, typed: str) -> None:
        at = types.Position(line, character)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), typed)
        document = types.VersionedTextDocumentIdentifier(2, URI)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def stop(self) -> list[dict[str, Any]]:
        """End the server and return its trace."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()
        return [json.loads(line) for line in self.trace_path.read_text().splitlines()]


def play(folder: Path, scene: Callable[[Editor], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await scene(Editor(folder))

    asyncio.run(run())


def test_suggestion_and_trace_come_from_upstream(tmp_path: Path):
    async def scene(editor: Editor) -> None:
        answer = written("   ", " return", " a + b", "\n", usage=USAGE)
        upstream = ScriptedUpstream(answer, model="Qwen/Qwen2.5-Coder-7B")
        async with upstream.listening():
            await editor.start({"urls": [upstream.url]})
            assert await editor.ask(1, 4) == "return a + b"
            records = await editor.stop()
        (record,) = [one for one in records if one.get("outcome") == "shown"]
        (seen,) = upstream.seen
        assert seen.headers["authorization"] == "Bearer sk-1"
        assert seen.body["model"] == "Qwen/Qwen2.5-Coder-7B"
        assert seen.body["prompt"].startswith("<|fim_prefix|>def add(a, b):\n")
        assert seen.body["prompt"].endswith("<|fim_middle|>")
        assert record["model"] == "Qwen2.5-Coder-7B"
        assert record["drafter"] == f"upstream:vllm@{upstream.url.removeprefix('http://')}"
        assert record["steps"] >= 3

    play(tmp_path, scene)


def test_key_that_disagrees_closes_the_connection_upstream(tmp_path: Path):
    async def scene(editor: Editor) -> None:
        hanging = Answer((text("    return a"),), hangs=True)
        async with ScriptedUpstream(hanging, written("x", "yz\n")).listening() as upstream:
            await editor.start({"urls": [upstream.url]})
            waiting = asyncio.ensure_future(editor.ask(1, 4))
            await upstream.arrived.wait()
            editor.type(1, 4, "q")
            await upstream.seen[0].is_left.wait()
            assert await waiting == ""
            await editor.stop()

    play(tmp_path, scene)
