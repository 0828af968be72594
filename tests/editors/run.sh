#!/usr/bin/env bash
# All tests in real editors, and the table of what came out: Neovim 0.11 and 0.12-dev, and the
# versions of VS Code that are named (4.100.3, 4.139.1; both without a name). Needs `make vscode`.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- 4.100.3 4.139.1
python=.venv/bin/python
here=tests/editors
rm -f build/editors/results.jsonl

status=0
for version in "$@"; do
  $here/vscode/install_tools.sh "$version"
  CODE_SERVER_VERSION=$version $python -m pytest -m slow -p no:randomly $here/vscode || status=$?
done
$here/neovim/install_tools.sh
$python -m pytest -m slow -p no:randomly $here/neovim || status=$?
$python -m tests.editors.table || status=$?
exit $status
