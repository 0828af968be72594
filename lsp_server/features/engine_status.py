"""Tells the user what the engine does: loading as progress, trouble once, the rest in the log."""

from __future__ import annotations

from lsp_server.state import State
from specengine.errors import SpecEngineError
from specengine.protocol import EngineState, EngineStatus


class EngineReporter:
    """Listens to the link; ``state`` is set right after both exist."""

    def __init__(self) -> None:
        self.state: State | None = None
        self._is_outage_told = False
        self._last: tuple[EngineState, str] | None = None

    def on_status(self, status: EngineStatus) -> None:
        """Show loading, its end, or why it failed."""
        state = self._require_state()
        self._is_outage_told = False
        editor = state.editor
        if (status.state, status.detail) != self._last:
            self._last = (status.state, status.detail)
            editor.log(f"engine {status.state}: {status.model}, {status.drafter}. {status.detail}")
        if status.state is EngineState.LOADING:
            editor.begin_progress(f"SpecEngine loads {status.model}")
            editor.report_progress(status.detail, status.progress)
            return
        editor.end_progress(f"{status.model} is {status.state}")
        if status.state is EngineState.FAILED:
            text = f"the model cannot be loaded: {status.detail}"
            state.show_once("engine_failed", text, "error")

    def on_outage(self, error: SpecEngineError) -> None:
        """Show the first trouble of an outage; what follows from it is only logged."""
        state = self._require_state()
        state.editor.end_progress("the engine has gone")
        if self._is_outage_told:
            state.editor.log(str(error))
        else:
            self._is_outage_told = True
            state.show_once(str(error), str(error), "warning")

    def on_give_up(self, error: SpecEngineError) -> None:
        """Show that no suggestions will come, and what brings them back."""
        text = f"no suggestions: {error} Ask for a suggestion, or change a setting, to try again."
        self._require_state().show_once("give_up", text, "error")

    def _require_state(self) -> State:
        assert self.state is not None, "the server sets it before the link starts"
        return self.state
