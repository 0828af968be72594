"""Facts about addresses and keys."""

from __future__ import annotations

import sys
import types

import pytest

from specengine.errors import SettingsInvalid
from specengine.upstream.endpoint import MAX_KEY_CHARS, Key, checked_url, read_key

SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://gpu.example:8000", "https://gpu.example:8000"),
        (" https://gpu.example/llm/v1/ ", "https://gpu.example/llm"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://localhost:8080/", "http://localhost:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_address_is_brought_into_one_form(text: str, expected: str):
    assert expected == checked_url(text, allow_http=False)


@pytest.mark.parametrize(
    "text",
    ["", "gpu:8000", "ftp://gpu", "https://", "https://gpu:port", "https://[::1", "file:///etc"],
)
def test_text_that_is_no_address_is_refused(text: str):
    with pytest.raises(SettingsInvalid, match="no address"):
        checked_url(text, allow_http=True)


@pytest.mark.parametrize("host", ["gpu", "10.0.0.1", "127.0.0.1.example", "localhost.example"])
def test_http_to_another_machine_must_be_allowed(host: str):
    with pytest.raises(SettingsInvalid, match="not encrypted"):
        checked_url(f"http://{host}:8000", allow_http=False)
    assert checked_url(f"http://{host}:8000", allow_http=True)


@pytest.mark.parametrize(
    "text", [f"https://me:{SECRET}@gpu", f"https://{SECRET}@gpu", f"https://gpu/?key={SECRET}"]
)
def test_address_with_a_secret_is_refused_without_showing_it(text: str):
    with pytest.raises(SettingsInvalid) as caught:
        checked_url(text, allow_http=True)
    assert SECRET not in str(caught.value)


def test_key_shows_itself_in_its_header_alone():
    key = read_key("KEY", "", {"KEY": f" {SECRET}\n"})
    assert key.header() == {"Authorization": f"Bearer {SECRET}"}
    assert SECRET not in f"{key} {key!r} {[key]}"


def test_no_key_makes_no_header():
    assert read_key("KEY", "", {}).header() == {} == Key().header()


@pytest.mark.parametrize("text", ["a b", "schlüssel", "a\r\nX: y", "k" * (MAX_KEY_CHARS + 1)])
def test_key_that_is_no_header_is_refused_without_showing_it(text: str):
    with pytest.raises(SettingsInvalid, match="KEY") as caught:
        read_key("KEY", "", {"KEY": text})
    assert text not in str(caught.value)


def fake_keyring(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    def get_password(service_name: str, username: str) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer if (service_name, username) == ("gpu", "specengine") else None

    module = types.ModuleType("keyring")
    vars(module)["get_password"] = get_password
    monkeypatch.setitem(sys.modules, "keyring", module)


def test_keyring_is_asked_when_the_variable_is_empty(monkeypatch: pytest.MonkeyPatch):
    fake_keyring(monkeypatch, SECRET)
    assert SECRET in read_key("KEY", "gpu", {}).header()["Authorization"]
    assert "other" in read_key("KEY", "gpu", {"KEY": "other"}).header()["Authorization"]


def test_keyring_without_an_entry_gives_no_key(monkeypatch: pytest.MonkeyPatch):
    fake_keyring(monkeypatch, None)
    assert read_key("KEY", "gpu", {}).header() == {}


def test_keyring_that_fails_is_named_without_its_words(monkeypatch: pytest.MonkeyPatch):
    fake_keyring(monkeypatch, RuntimeError(SECRET))
    with pytest.raises(SettingsInvalid, match="RuntimeError") as caught:
        read_key("KEY", "gpu", {})
    assert SECRET not in str(caught.value)


def test_keyring_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(SettingsInvalid, match="pip install"):
        read_key("KEY", "gpu", {})
