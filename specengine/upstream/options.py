"""What a user can say about servers upstream; whoever reads settings makes one of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from specengine.upstream.endpoint import Key

WayChoice: TypeAlias = Literal["auto", "none", "template", "suffix", "infill"]


@dataclass(frozen=True)
class Limits:
    """How long and how much; all times are of one request."""

    connect_s: float = 3.0
    """For a connection to be made, or one of ours to be free."""
    first_text_s: float = 10.0
    """From sending to the first text."""
    gap_s: float = 5.0
    """Between two events of an answer."""
    total_s: float = 30.0
    """All tries together."""
    attempts: int = 3
    """Tries, at one server or at several; only while no text has come."""
    max_connections: int = 8
    """To each server."""


@dataclass(frozen=True)
class UpstreamOptions:
    """Which servers, and how they are asked."""

    urls: tuple[str, ...]
    """As ``endpoint.checked_url`` returns them."""
    model: str = ""
    """As the servers call it; empty is the first that each one lists."""
    template: str = ""
    """A name from models.toml; empty is the one that the server's name for the model means."""
    way: WayChoice = "auto"
    """How a server learns what stands behind the cursor; see ``layout.Way``."""
    key: Key = field(default_factory=Key)
    ca_file: str = ""
    """PEM file of an authority that signed the servers' certificates; empty is the system's."""
    limits: Limits = field(default_factory=Limits)
