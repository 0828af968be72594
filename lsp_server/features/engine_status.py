"""Tells the user what the engine does: loading as progress, trouble once, the rest in the log.

An editor that shows more listens to ``specengine/status``.
"""

from __future__ import annotations

from dataclasses import replace

from lsp_server.state import EngineNote, State
from specengine.errors import SpecEngineError
from specengine.protocol import EngineState, EngineStatus


class EngineReporter:
    """Listens to the link; ``state`` is set right after both exist."""

    def __init__(self) -> None:
        self.state: State | None = None
        self._is_outage_told = False
        self._last: tuple[EngineState, str] | None = None
        self._note: EngineNote | None = None

    def on_attempt(self) -> None:
        """Say that the engine starts, unless an outage has just said so."""
        if self._note is None or self._note.state != "starting":
            self._tell(replace(self._known(), state="starting", progress=0.0, detail=""))

    def on_status(self, status: EngineStatus) -> None:
        """Show loading, its end, or why it failed."""
        state = self._require_state()
        self._is_outage_told = False
        editor = state.editor
        if (status.state, status.detail) != self._last:
            self._last = (status.state, status.detail)
            editor.log(f"engine {status.state}: {status.model}, {status.drafter}. {status.detail}")
        name = status.state.value
        self._tell(EngineNote(name, status.model, status.drafter, status.progress, status.detail))
        if status.state is EngineState.LOADING:
            editor.begin_progress("SpecEngine")
            text = f"loading model {status.progress * 100:.0f} %: {status.detail}"
            editor.report_progress(text, status.progress)
            return
        editor.end_progress(f"{status.model} is {status.state}")
        if status.state is EngineState.FAILED:
            text = f"the model cannot be loaded: {status.detail}"
            state.show_once("engine_failed", text, "error")

    def on_outage(self, error: SpecEngineError) -> None:
        """Show the first trouble of an outage; what follows from it is only logged."""
        state = self._require_state()
        self._tell(replace(self._known(), state="starting", progress=0.0, detail=str(error)))
        state.editor.end_progress("the engine has gone")
        if self._is_outage_told:
            state.editor.log(str(error))
        else:
            self._is_outage_told = True
            state.show_once(str(error), str(error), "warning")

    def on_give_up(self, error: SpecEngineError) -> None:
        """Show that no suggestions will come, and what brings them back."""
        text = f"no suggestions: {error} Ask for a suggestion, or change a setting, to try again."
        self._tell(replace(self._known(), state="unavailable", progress=0.0, detail=text))
        self._require_state().show_once("give_up", text, "error")

    def _known(self) -> EngineNote:
        """Return the last note; before the first one, the names are what the settings wish for."""
        if self._note is not None:
            return self._note
        engine = self._require_state().settings.engine
        return EngineNote("starting", engine.model, engine.drafter, 0.0, "")

    def _tell(self, note: EngineNote) -> None:
        if note != self._note:
            self._note = note
            self._require_state().editor.tell_status(note)

    def _require_state(self) -> State:
        assert self.state is not None, "the server sets it before the link starts"
        return self.state
