"""Completions from another server in the place of our engine: one that speaks OpenAI's protocol."""
