"""Facts about the edge to pygls and about the command line."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcInternalError, JsonRpcInvalidParams

from lsp_server import cli
from lsp_server.server import Protocol, make_converter, make_server

Kind = types.InlineCompletionTriggerKind


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (0, Kind.Invoked),
        (1, Kind.Invoked),
        (2, Kind.Automatic),
        (7, Kind.Automatic),
        ("x", Kind.Automatic),
    ],
)
def test_any_trigger_kind_is_taken(sent: object, taken: types.InlineCompletionTriggerKind):
    context = make_converter().structure({"triggerKind": sent}, types.InlineCompletionContext)
    assert context.trigger_kind is taken


def test_server_has_every_feature():
    features = make_server().protocol.fm.features
    assert types.TEXT_DOCUMENT_INLINE_COMPLETION in features
    assert types.WORKSPACE_DID_CHANGE_CONFIGURATION in features


def test_document_with_a_broken_change_is_no_end():
    """A notification that cannot be read is refused without an answer."""
    protocol = make_server().protocol
    assert isinstance(protocol, Protocol)
    message = {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": {"x": 1}}
    assert protocol.structure_message(message) is None
    protocol.handle_message(None)


def test_engine_process_is_never_imported():
    """The language server starts quickly and small: torch stays where it belongs."""
    code = (
        "import sys, lsp_server.server; bad = {'torch', 'transformers', 'tokenizers', 'numpy',"
        " 'tree_sitter_python'} & set(sys.modules); sys.exit(' '.join(bad) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_importing_the_command_line_imports_no_server():
    """What comes with the server is imported while nobody looks for garbage."""
    code = "import sys, lsp_server.cli; sys.exit('lsprotocol' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_address_is_host_and_port():
    assert cli._host_and_port("127.0.0.1:80") == ("127.0.0.1", 80)
    for wrong in ("80", ":80", "a:b", "a:70000"):
        with pytest.raises(argparse.ArgumentTypeError):
            cli._host_and_port(wrong)


def test_version_is_told(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip()


def test_error_of_an_exception_does_not_quote_it(monkeypatch: pytest.MonkeyPatch):
    """Editors log the errors that they get, and exceptions quote what they stumble over."""
    sent: list[object] = []
    protocol = make_server().protocol
    monkeypatch.setattr(protocol, "_send_data", sent.append)
    for error in (JsonRpcInternalError, JsonRpcInvalidParams):
        told = types.ResponseError(error.CODE, "ValueError: secret", {"traceback": ["secret"]})
        protocol._send_response(1, error=told)
    told = types.ResponseError(-32800, "cancelled")
    protocol._send_response(2, error=told)
    assert "secret" not in repr(sent)
    assert "Invalid Params" in repr(sent)
    assert "cancelled" in repr(sent)


def test_failure_of_a_feature_is_logged_by_kind_and_place(caplog: pytest.LogCaptureFixture):
    try:
        raise KeyError("secret")
    except KeyError:
        make_server().report_server_error(JsonRpcInternalError("x"), JsonRpcInternalError)
    assert "KeyError at" in caplog.text
    assert "secret" not in caplog.text
