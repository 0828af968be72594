#!/usr/bin/env bash
# All that is measured on a GPU, in one go of less than eight minutes on an H200: is the text the
# same, and how fast are passes of Qwen2.5-Coder's sizes. Results go to the folder given first
# (gpu-results where none is). Needs a Python with a torch for CUDA:
#   PYTHON=python3 bench/gpu.sh [FOLDER]
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=${1:-gpu-results}
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
failed=0

step() { # name, seconds, command…
  local name=$1 limit=$2
  shift 2
  echo "== $name"
  timeout -k 5 "$limit" "$@" 2>&1 | tee "$out/$name.log"
  [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "== $name failed" && failed=1; }
}

timeout 20 nvidia-smi | tee "$out/machine.log"
timeout 40 "$python" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee -a "$out/machine.log"
step graphs 100 "$python" -m pytest -q -p no:randomly tests/gpu
step shapes-bf16 110 "$python" -m specengine.cli bench shapes --device cuda --precision bfloat16 --json "$out/bf16.json"
step shapes-int8 110 "$python" -m specengine.cli bench shapes --device cuda --precision int8 --json "$out/int8.json"
step shapes-int4 80 "$python" -m specengine.cli bench shapes --device cuda --precision int4 --shapes 7b,14b --json "$out/int4.json"
exit $failed
