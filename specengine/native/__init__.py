"""The native forward pass: one C file, and what compiles and loads it."""
