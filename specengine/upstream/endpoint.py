"""Where an upstream server is, and the key that it wants to see.

Addresses are checked before anything is sent. A key comes from an environment variable or from the
keyring of the desktop, and shows itself nowhere but in the header that is made of it.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Final, Protocol, cast
from urllib.parse import SplitResult, urlsplit

from specengine.errors import SettingsInvalid

MAX_KEY_CHARS: Final = 4096
_KEY: Final = re.compile(r"[\x21-\x7e]+")


class Key:
    """A secret that is shown by no ``repr``, ``str`` or comparison."""

    def __init__(self, text: str = "") -> None:
        self.__text = text

    def __repr__(self) -> str:
        return "Key(hidden)" if self.__text else "Key(none)"

    def header(self) -> dict[str, str]:
        """Return the header that shows it to the server; empty without a key."""
        return {"Authorization": f"Bearer {self.__text}"} if self.__text else {}


class _Keyring(Protocol):
    def get_password(self, service_name: str, username: str) -> str | None: ...


def checked_url(text: str, *, allow_http: bool) -> str:
    """Return the address of a server without ``/v1`` and slashes at its end.

    Raises:  SettingsInvalid for what is no address, holds a secret, or would send source text
        over a network in the clear.
    """
    parts = _split(text)
    shown = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not shown:
        raise SettingsInvalid(
            "upstream.urls: an entry is no address of a server.", hint="Write https://HOST:PORT."
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsInvalid(
            f"upstream.urls: the address of {shown} holds a name or a password.",
            hint="Put the key into an environment variable and name it in upstream.keyVariable.",
        )
    if parts.query or parts.fragment:
        raise SettingsInvalid(
            f"upstream.urls: the address of {shown} has a part behind ? or #.",
            hint="Write https://HOST:PORT.",
        )
    if parts.scheme == "http" and not (allow_http or is_loopback(shown)):
        raise SettingsInvalid(
            f"upstream.urls: {shown} is another machine, and http is not encrypted.",
            hint="Use https, or set upstream.allowHttp where the network itself is trusted.",
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(
    variable: str, keyring_service: str, environment: Mapping[str, str] | None = None
) -> Key:
    """Return the key of an environment variable, else of the keyring, else none.

    May wait for the desktop, which may ask the user: call it in a thread.

    Raises:  SettingsInvalid when the keyring cannot be asked, or the key cannot be a header.
    """
    text = (os.environ if environment is None else environment).get(variable, "").strip()
    where = f"the environment variable {variable}"
    if not text and keyring_service:
        text = _from_keyring(keyring_service)
        where = f"the keyring's entry {keyring_service}"
    if text and (len(text) > MAX_KEY_CHARS or _KEY.fullmatch(text) is None):
        raise SettingsInvalid(
            f"the key in {where} cannot be sent: it has blanks or other letters than ASCII, "
            f"or more than {MAX_KEY_CHARS} characters."
        )
    return Key(text)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text.strip())
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return urlsplit("")
    return parts


def _from_keyring(service: str) -> str:
    try:
        keyring = cast("_Keyring", importlib.import_module("keyring"))
        return (keyring.get_password(service, "specengine") or "").strip()
    except ModuleNotFoundError:
        raise SettingsInvalid(
            "upstream.keyringService is set, but the package keyring is not installed.",
            hint="Run: pip install 'specengine[keyring]', or use upstream.keyVariable.",
        ) from None
    except Exception as error:  # each desktop has errors of its own
        raise SettingsInvalid(
            f"the keyring cannot be asked for {service!r}: {type(error).__name__}."
        ) from None
