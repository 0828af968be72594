"""From the settings to a client of servers upstream.

The client and all that it needs are imported when the settings ask for it, in a thread: whoever has
a local engine does not wait for it, and nobody's editor stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from lsp_server.settings import UpstreamSettings
from specengine.client import Client, EngineClient

if TYPE_CHECKING:
    from specengine.upstream.client import UpstreamClient
    from specengine.upstream.options import UpstreamOptions, WayChoice


@dataclass(frozen=True)
class UpstreamOpener:
    """Makes clients of the same servers."""

    settings: UpstreamSettings
    open_local: Callable[[], Awaitable[EngineClient]]
    """How to connect to our own engine, for when no server answers."""

    async def open(self) -> Client:
        """Return a client.

        Raises:  ConfigError for settings that cannot work; EngineUnavailable when no server
            answers, unless our own engine may.
        """
        client_type, options = await asyncio.to_thread(self._prepare)
        return await client_type.open(
            options, self.open_local if self.settings.local_fallback else None
        )

    def _prepare(self) -> tuple[type[UpstreamClient], UpstreamOptions]:
        from specengine.upstream.client import UpstreamClient
        from specengine.upstream.endpoint import checked_url, read_key
        from specengine.upstream.options import Limits, UpstreamOptions

        settings = self.settings
        options = UpstreamOptions(
            urls=tuple(checked_url(u, allow_http=settings.allow_http) for u in settings.urls),
            model=settings.model,
            template=settings.template,
            way=cast("WayChoice", settings.fim),  # the settings have been checked
            key=read_key(settings.key_variable, settings.keyring_service),
            ca_file=settings.ca_file,
            limits=Limits(
                connect_s=settings.connect_ms / 1000,
                first_text_s=settings.first_text_ms / 1000,
                gap_s=settings.gap_ms / 1000,
                total_s=settings.total_ms / 1000,
                attempts=settings.attempts,
                max_connections=settings.max_connections,
            ),
        )
        return UpstreamClient, options
