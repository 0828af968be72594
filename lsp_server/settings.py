"""What a user can set, with every default; the docstring under a field is its reference.

An editor sends nested objects in camelCase, in ``initializationOptions`` or with
``workspace/didChangeConfiguration``. What is wrong is reported and keeps its default.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SECTION: Final = "specengine"
"""The name of our object in an editor's settings."""

T = TypeVar("T")
_CAMEL: Final = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True)
class EngineSettings:
    """Which engine answers, and how it is started."""

    backend: str = "local"
    """``local`` is our own engine; ``upstream`` are the servers of ``upstream.urls``."""
    model: str = ""
    """A name from models.toml, a folder, or a .gguf file; empty is the default of models.toml."""
    drafter: str = ""
    """How tokens are drafted; ``none`` decodes one at a time. Empty is the engine's own choice:
    engine.toml, else ``auto``."""
    socket: str = ""
    """Path of the socket of an engine that runs already; empty starts or joins our own."""
    arguments: tuple[str, ...] = ()
    """Further arguments of ``specengine serve``."""
    idle_exit_s: float = 1800.0
    """Seconds without a connection after which the engine exits."""
    start_timeout_s: float = 60.0
    """Seconds in which a started engine must accept connections (not: have loaded)."""
    wait_ms: float = 20_000.0
    """How long a request waits while a connection is being opened before its answer is empty."""


@dataclass(frozen=True)
class UpstreamSettings:
    """Servers that answer in the place of our engine: any that speak OpenAI's protocol."""

    urls: tuple[str, ...] = ()
    """Their addresses, as ``https://HOST:PORT``. Several stand in for each other. What is written
    in the editor goes there."""
    model: str = ""
    """The model, as the servers call it; empty is the first that each one lists."""
    template: str = ""
    """A name from models.toml, for the markers around the cursor; empty is found by the server's
    name for the model."""
    fim: str = "auto"
    """How a server learns what stands behind the cursor: ``template`` writes markers into the
    prompt, ``suffix`` uses the field of that name, ``infill`` is llama.cpp's own way, ``none``
    tells nothing, and ``auto`` is the best that server and model are known to take."""
    key_variable: str = "SPECENGINE_UPSTREAM_KEY"
    """Environment variable with the key that the servers want to see."""
    keyring_service: str = ""
    """Entry of the desktop's keyring with that key, for the user ``specengine``."""
    allow_http: bool = False
    """Whether text may go to other machines unencrypted."""
    ca_file: str = ""
    """PEM file of an authority of your own that signed the servers' certificates."""
    local_fallback: bool = True
    """Whether our own engine is started and answers while no server does."""
    connect_ms: float = 3000.0
    """Longest wait for a connection."""
    first_text_ms: float = 10_000.0
    """Longest wait for the first text of an answer."""
    gap_ms: float = 5000.0
    """Longest silence within an answer."""
    total_ms: float = 30_000.0
    """Longest time for an answer, all tries together."""
    attempts: int = 3
    """Tries, at one server or several, as long as no text has come."""
    max_connections: int = 8
    """Connections to each server."""


@dataclass(frozen=True)
class CompletionSettings:
    """When a suggestion is asked for, and how long it may be."""

    enabled: bool = True
    """False answers every request with nothing."""
    max_tokens: int = 96
    """Longest suggestion that may span lines."""
    line_max_tokens: int = 40
    """Longest suggestion for the rest of one line."""
    invoked_max_tokens: int = 192
    """Longest suggestion for who asks explicitly: all up to the end of the block."""
    alternatives: int = 3
    """Suggestions to choose from for who asks explicitly; an automatic request gets one."""
    temperature: float = 0.0
    """0 is greedy; above, ``seed`` decides."""
    seed: int = 0
    """Seed of a sampled suggestion."""
    max_debounce_ms: float = 40.0
    """Longest pause before an automatic request in a burst of keys that are faster than the
    engine's answers; 0 turns it off."""
    patience_ms: float = 400.0
    """An automatic request is answered after so long with the whole lines that are there, or with
    the first one that comes; the rest follows when they are accepted. 0 waits for the end."""
    look_ahead: bool = True
    """Go on behind a suggestion while it stands on the screen; False saves power. Servers upstream
    are not asked for it."""
    follow_typing: bool = True
    """False cancels and asks anew on each key, as a yardstick for what following saves."""
    menu: bool = False
    """Answer ``textDocument/completion`` too, for editors without ghost text: Helix, Sublime Text,
    Neovim before 0.12. Read when the editor starts."""
    ignored_files: tuple[str, ...] = ()
    """Further files whose text never reaches the engine, as lines of .gitignore. Always ignored are
    .env files, keys, certificates, and what is called secret or credentials; ``!PATTERN`` lets one
    in."""


@dataclass(frozen=True)
class ContextSettings:
    """How much text around the cursor the model reads."""

    max_prompt_tokens: int = 1024
    """Upper limit, estimated at 3 characters a token; the engine's own limit may be lower."""
    suffix_share: float = 0.2
    """Part of it that is kept for the text after the cursor."""
    other_files: str = "auto"
    """Whether the model also reads from other files: ``never``, ``always``, or with ``auto`` where
    it has learnt to, as models.toml says with ``file_sep``. The default model has not. With
    ``always``, such a model gets them as comments."""
    files_share: float = 0.25
    """Part of the limit that other files may take, and more where this file is short."""


@dataclass(frozen=True)
class PrivacySettings:
    """What may be read beyond the file that is edited, and that only if no rule ignores it."""

    use_gitignore: bool = True
    """Ignore what git ignores. A file ``.specengineignore`` of the same form is always heeded."""
    read_unopened: bool = False
    """Also read files of the workspace that this file imports though they are not open."""
    read_outside: bool = False
    """Also read, for other files, what lies outside the workspace or is linked from there."""


@dataclass(frozen=True)
class TraceSettings:
    """Where the record of each request goes; it never holds source text."""

    enabled: bool = True
    """False writes neither file nor log lines."""
    path: str = ""
    """The JSONL file; empty means trace.jsonl in the user's state folder."""
    max_bytes: int = 8 * 2**20
    """A longer file is renamed to ``*.1`` and a new one begun."""


@dataclass(frozen=True)
class Settings:
    """All settings of the language server."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    completion: CompletionSettings = field(default_factory=CompletionSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    trace: TraceSettings = field(default_factory=TraceSettings)


MINIMUM: Final[Mapping[str, float]] = {
    "engine.idle_exit_s": 1.0,
    "engine.start_timeout_s": 1.0,
    "engine.wait_ms": 0.0,
    "upstream.connect_ms": 1.0,
    "upstream.first_text_ms": 1.0,
    "upstream.gap_ms": 1.0,
    "upstream.total_ms": 1.0,
    "upstream.attempts": 1,
    "upstream.max_connections": 1,
    "completion.max_tokens": 1,
    "completion.line_max_tokens": 1,
    "completion.invoked_max_tokens": 1,
    "completion.alternatives": 1,
    "completion.temperature": 0.0,
    "completion.max_debounce_ms": 0.0,
    "context.max_prompt_tokens": 64,
    "context.suffix_share": 0.0,
    "context.files_share": 0.0,
    "trace.max_bytes": 4096,
}
"""Smallest allowed value by name."""

MAXIMUM: Final[Mapping[str, float]] = {
    "completion.alternatives": 8,
    "upstream.attempts": 10,
    "upstream.max_connections": 64,
    "context.suffix_share": 0.9,
    "context.files_share": 0.5,
}
"""Largest allowed value by name."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "engine.backend": ("local", "upstream"),
    "upstream.fim": ("auto", "none", "template", "suffix", "infill"),
    "context.other_files": ("auto", "always", "never"),
}
"""All allowed values by name."""


def read_settings(data: object, defaults: Settings | None = None) -> tuple[Settings, list[str]]:
    """Return the settings that an editor's object describes, and one line for each mistake.

    The object may be wrapped in its section name. Nothing and null change nothing.
    """
    base = defaults or Settings()
    if data is None:
        return base, []
    if not isinstance(data, Mapping):
        return base, [f"settings must be an object, not {type(data).__name__}; defaults are used."]
    mapping = cast("Mapping[object, object]", data)
    if SECTION in mapping:
        return read_settings(mapping[SECTION], base)
    problems: list[str] = []
    return _read_group(base, mapping, "", problems), problems


def _read_group(default: T, data: Mapping[object, object], prefix: str, problems: list[str]) -> T:
    group_type = cast("type[DataclassInstance]", type(default))
    known: dict[str, object] = {e.name: getattr(default, e.name) for e in fields(group_type)}
    changes: dict[str, object] = {}
    for raw_key, value in data.items():
        name = _CAMEL.sub("_", str(raw_key)).lower()
        if name not in known:
            problems.append(_unknown_key(prefix + str(raw_key), name, list(known)))
        elif is_dataclass(known[name]):
            if isinstance(value, Mapping):
                group = cast("Mapping[object, object]", value)
                changes[name] = _read_group(known[name], group, f"{name}.", problems)
            else:
                problems.append(f"setting {name} must be an object; its defaults are used.")
        else:
            changes[name] = _read_value(prefix + name, value, known[name], problems)
    # The group's own type checks nothing: each value has been checked against its default.
    return cast("T", replace(cast("DataclassInstance", default), **changes))


def _read_value(name: str, value: object, default: object, problems: list[str]) -> object:
    accepted = _accept(name, value, default)
    if accepted is None:
        problems.append(f"setting {name} cannot be {value!r}; {default!r} is used.")
        return default
    return accepted


def _accept(name: str, value: object, default: object) -> object | None:
    """Return the value in the type of its default, or None."""
    match default, value:
        case str(), str():
            return value if value in CHOICES.get(name, (value,)) else None
        case bool(), bool():
            return value
        case bool(), _:
            return None
        case (int(), int()) | (float(), int() | float()) if not isinstance(value, bool):
            number = float(value) if isinstance(default, float) else value
            return number if _is_in_range(name, number) else None
        case tuple(), list():
            items = cast("list[object]", value)
            return tuple(items) if all(isinstance(item, str) for item in items) else None
        case _:
            return None


def _is_in_range(name: str, value: float) -> bool:
    return MINIMUM.get(name, -(2**40)) <= value <= MAXIMUM.get(name, 2**40)


def _unknown_key(shown: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {_camel(nearest[0])}?" if nearest else f"known: {', '.join(known)}."
    return f"unknown setting {shown}; {hint}"


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
