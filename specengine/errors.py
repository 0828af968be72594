"""Every error that SpecEngine raises on purpose, in one tree.

    SpecEngineError
    ├─ ConfigError            the user can fix it, raised before serving
    │   ├─ SettingsInvalid    a key, its value, what is allowed
    │   ├─ ModelUnknown       names the nearest spelling
    │   └─ ModelsIncompatible draft and target do not share their tokens
    ├─ LoadError              weights missing, changed, cut, or too large for this machine
    ├─ TrainingFailed         gradients are no numbers; what was saved stands
    ├─ RequestError           one request only; crosses the wire; has a code
    │   ├─ RequestInvalid     a field of the request is outside its limits
    │   ├─ PromptTooLong      given and allowed, in tokens
    │   ├─ EngineBusy         the queue is full
    │   ├─ EngineFailed       the engine could not load its model
    │   ├─ UpstreamFailed     a server upstream did not answer, or not as it should
    │   └─ InternalFault      our bug; the engine goes on serving
    ├─ Refused                the HTTP door refuses a request before the engine hears of it
    ├─ ProtocolError          the other side sent something that is no frame of ours
    └─ EngineUnavailable      seen by the client: not started, connection lost, version differs

Cancellation is not an error. Bugs of ours are assertions, outside this tree.
"""

from __future__ import annotations

from typing import ClassVar


class SpecEngineError(Exception):
    """Base of all errors below; its text says what, where and what to do."""

    code: ClassVar[str] = "error"

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(f"{what} {hint}".rstrip())
        self.what = what
        self.hint = hint


class ConfigError(SpecEngineError):
    """The configuration cannot work; the user can fix it."""

    code = "config"


class SettingsInvalid(ConfigError):
    """A setting has a name or a value that is not allowed."""

    code = "settings_invalid"


class ModelUnknown(ConfigError):
    """No such model is declared in models.toml."""

    code = "model_unknown"


class ModelsIncompatible(ConfigError):
    """Draft model and target do not share their tokens, so drafts would be nonsense."""

    code = "models_incompatible"


class LoadError(SpecEngineError):
    """A model could not be fetched, verified, converted or loaded."""

    code = "load"


class TrainingFailed(SpecEngineError):
    """A training run cannot go on; what it has saved stands."""

    code = "training"


class RequestError(SpecEngineError):
    """One request cannot be answered; all others are served on."""

    code = "request"


class RequestInvalid(RequestError):
    """A field of the request is outside its limits."""

    code = "request_invalid"


class PromptTooLong(RequestError):
    """The prompt does not fit the context, and may not be cut."""

    code = "prompt_too_long"


class EngineBusy(RequestError):
    """Too many requests wait already."""

    code = "engine_busy"


class EngineFailed(RequestError):
    """The engine could not load its model, so it cannot answer."""

    code = "engine_failed"


class UpstreamFailed(RequestError):
    """A server upstream did not answer, or not as it should."""

    code = "upstream_failed"


class InternalFault(RequestError):
    """A bug of ours ended this request; the log has the traceback."""

    code = "internal"


class Refused(SpecEngineError):
    """The HTTP door refuses a request before the engine hears of it."""

    code = "refused"

    def __init__(
        self, what: str, *, hint: str = "", status: int = 400, reason: str = "", param: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.status = status
        """HTTP's."""
        self.reason = reason
        """OpenAI's ``code``; empty is none."""
        self.param = param
        """The field that is wrong; empty where it is none or several."""


class ProtocolError(SpecEngineError):
    """The other side sent bytes that are no frame of this protocol."""

    code = "protocol"


class EngineUnavailable(SpecEngineError):
    """The engine is not there: not started, connection lost, or another protocol version."""

    code = "engine_unavailable"


REQUEST_ERRORS: dict[str, type[RequestError]] = {
    error.code: error
    for error in (
        RequestError,
        RequestInvalid,
        PromptTooLong,
        EngineBusy,
        EngineFailed,
        UpstreamFailed,
        InternalFault,
    )
}
"""Those that cross the wire, by their code."""
