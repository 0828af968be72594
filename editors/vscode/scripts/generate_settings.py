"""Writes the language server's settings into package.json, from the dataclasses that define them.

A field's type and default become the schema, the string below it becomes the description. With
``--check`` nothing is written; the exit code says whether package.json is up to date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from lsp_server import settings

PACKAGE: Final = Path(__file__).parents[1] / "package.json"
OWN_TITLE: Final = "SpecEngine"
"""The section of package.json with what concerns the extension alone; it is left as it is."""

RESTRICTED: Final = (
    "engine.",
    "upstream.",
    "privacy.",
    "trace.path",
    "completion.ignored_files",
)
"""Beginnings of names that a folder may only set when it is trusted."""

RESTRICTED_OWN: Final = ("specengine.python", "specengine.pipArguments")


def main() -> None:
    """Write package.json, or check it."""
    written = PACKAGE.read_text(encoding="utf-8")
    generated = render(json.loads(written))
    if "--check" not in sys.argv[1:]:
        PACKAGE.write_text(generated, encoding="utf-8")
    elif generated != written:
        sys.exit(f"{PACKAGE} is not up to date: run {Path(__file__).name}")


def render(package: dict[str, Any]) -> str:
    """Return the text of package.json with the settings of the server in it."""
    contributes = package["contributes"]
    own = [part for part in contributes["configuration"] if part["title"] == OWN_TITLE]
    sections = [section(group.name) for group in fields(settings.Settings)]
    contributes["configuration"] = own + sections
    restricted = [
        key for part in sections for key, schema in part["properties"].items() if "scope" in schema
    ]
    trust = package["capabilities"]["untrustedWorkspaces"]
    trust["restrictedConfigurations"] = [*RESTRICTED_OWN, *restricted]
    return json.dumps(package, indent=2, ensure_ascii=False) + "\n"


def section(group: str) -> dict[str, Any]:
    """Return the settings of one group as a section of the settings page."""
    defaults = getattr(settings.Settings(), group)
    descriptions = field_docstrings(type(defaults))
    properties = {}
    for order, field in enumerate(fields(defaults), start=1):
        name = f"{group}.{field.name}"
        default = getattr(defaults, field.name)
        schema = value_schema(name, default) | {"order": order}
        if name.startswith(RESTRICTED):
            schema["scope"] = "machine-overridable"
        schema["markdownDescription"] = as_markdown(descriptions[field.name])
        properties[f"{settings.SECTION}.{group}.{camel(field.name)}"] = schema
    return {"title": group.capitalize(), "properties": properties}


def value_schema(name: str, default: object) -> dict[str, Any]:
    """Return type, default and limits of a value, as JSON schema has them."""
    match default:
        case bool():
            schema: dict[str, Any] = {"type": "boolean"}
        case int():
            schema = {"type": "integer"}
        case float():
            schema = {"type": "number"}
        case str():
            schema = {"type": "string"}
        case tuple():
            schema = {"type": "array", "items": {"type": "string"}}
            default = list(default)
        case _:
            raise TypeError(f"{name} has no schema: {default!r}")
    schema["default"] = as_json(default)
    if name in settings.CHOICES:
        schema["enum"] = list(settings.CHOICES[name])
    if name in settings.MINIMUM:
        schema["minimum"] = as_json(settings.MINIMUM[name])
    if name in settings.MAXIMUM:
        schema["maximum"] = as_json(settings.MAXIMUM[name])
    return schema


def as_json(value: object) -> object:
    """Return a value as npm writes it: a whole number has no point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def field_docstrings(group: type) -> dict[str, str]:
    """Return the string below each field of a dataclass."""
    body = ast.parse(inspect.getsource(group)).body[0]
    assert isinstance(body, ast.ClassDef), "a class has been parsed"
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                found[name] = str(text)
            case _:
                pass
    return found


def as_markdown(text: str) -> str:
    """Return a docstring as one paragraph of Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


def camel(name: str) -> str:
    """Return a name as editors write it."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


if __name__ == "__main__":
    main()
