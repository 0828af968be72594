#!/usr/bin/env bash
# Fetches what the tests in a real VS Code need: code-server from npm, without its install scripts,
# and for Python the browser's driver. Chromium comes from the system's packages.
set -euo pipefail
version=${1:-4.100.3} # VS Code 1.100.3; the last one that runs on Node 20
cache=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors
folder=$cache/code-server-$version
quiet=(--no-audit --no-fund --ignore-scripts --omit=dev --loglevel=error)

if [ ! -e "$folder/done" ]; then
  mkdir -p "$folder"
  echo '{"name": "tools", "private": true}' >"$folder/package.json"
  (cd "$folder" && npm install "${quiet[@]}" "code-server@$version")
  # The real dependencies of VS Code stand in a package of its own inside.
  (cd "$folder/node_modules/code-server/lib/vscode" && npm install "${quiet[@]}")
  touch "$folder/done"
fi
"${PYTHON:-.venv/bin/python}" -m pip install --quiet --disable-pip-version-check playwright==1.65.2
command -v chromium >/dev/null || { echo "needs chromium: apt-get install --no-install-recommends chromium" >&2; exit 1; }
