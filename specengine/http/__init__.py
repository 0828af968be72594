"""The HTTP door of the engine."""
