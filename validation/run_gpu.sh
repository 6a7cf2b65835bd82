#!/bin/sh
# Builds kvsim with CUDA and runs its kernels on the first GPU, unattended: correctness against the references, times,
# the decode loop next to its prediction, and PyTorch if Python has it. Creates a folder of results to send us
# (docs/hardware.md).
#
#   validation/run_gpu.sh [RESULT_FOLDER]
#
# RESULT_FOLDER  kernels/ (result.json, figures, calibration.json),
#                simulator.json (the same kernels' counted bytes),
#                e2e-METHOD.json (the decode loop, measured and predicted), torch/ (next to PyTorch),
#                device.txt (name, driver, clocks, power state, memory in use, before and after), build.txt,
#                summary.txt (what ran, its exit status, its seconds)
# Each part has a time limit. Parts are stopped, or not started, 470 seconds after the start, so that everything takes
# less than 8 minutes if the build takes less than 4. A kernel that breaks the GPU or a part that fails loses only its
# own results, and files are never left half written.
# Needs: nvcc 12.4 or later, an NVIDIA GPU with nothing else
# running, cmake, ninja, the libraries that README.md lists. Exit status: 0 all pass, 1 a part failed, 2 no build or
# no device.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-kvsim-gpu-$(date -u +%Y%m%d-%H%M%S)}
case $out in /*) ;; *) out=$(pwd)/$out ;; esac
if [ -e "$out" ]; then
  echo "run_gpu.sh: $out is there already; name another folder" >&2
  exit 2
fi
start=$(date +%s)
build=$root/build/run-gpu
mkdir -p "$out"

describe() {
  echo "== $1, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  nvidia-smi --format=csv --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,pstate,power.draw,power.limit,temperature.gpu,ecc.mode.current,mig.mode.current
}

{
  nvcc --version
  cmake --version
  git -C "$root" rev-parse HEAD 2>/dev/null || true
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVSIM_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES=native &&
    cmake --build "$build" --target kvsim kvsim_decode
} >"$out/build.txt" 2>&1 || {
  echo "run_gpu.sh: the build failed; its last lines, all of it in $out/build.txt:" >&2
  tail -n 15 "$out/build.txt" >&2
  exit 2
}

describe before >"$out/device.txt" 2>&1 || true
"$build/kvsim" list devices >>"$out/device.txt" 2>&1 || true
status=0
# part NAME SECONDS FILE COMMAND…: runs COMMAND for SECONDS at most, within the remaining time, with its output in
# FILE. Exit status 77 means that it was skipped; FILE has the reason.
part() {
  name=$1 limit=$2 file=$3
  shift 3
  began=$(date +%s)
  left=$((start + 470 - began))
  [ "$left" -ge "$limit" ] || limit=$left
  if [ "$limit" -lt 10 ]; then
    echo "$name: not run, no time was left" >>"$out/summary.txt"
    return 0
  fi
  code=0
  timeout "$limit" "$@" >"$file" 2>&1 || code=$?
  case $code in
    77) outcome=skipped ;;
    124) outcome="stopped after $limit s" ;;
    *) outcome="exit status $code" ;;
  esac
  echo "$name: $outcome, $(($(date +%s) - began)) s" >>"$out/summary.txt"
  case $code in 0 | 77) ;; *) [ "$status" -ne 0 ] || status=1 ;; esac
}

# Without a device the script ends here: the rest would be meaningless.
if ! "$build/kvsim" list devices --json | grep -q '"name"'; then
  echo "run_gpu.sh: no device; $out/device.txt lists what was searched" >&2
  exit 2
fi
# Includes the profiler's counters if ncu is installed and the driver permits them; else a note states the reason.
part "kernels" 330 "$out/kernels.txt" "$build/kvsim" validate kernels --device cuda --counters --limit 180 \
  -o "$out/kernels"
part "simulator" 60 "$out/simulator.txt" "$build/kvsim" validate kernels -o "$out/simulator"
[ ! -e "$out/simulator/result.json" ] || mv "$out/simulator/result.json" "$out/simulator.json"
rm -rf "$out/simulator"

# The longest sequence is measured once, with the full cache: a budget has no limit.
part "e2e full" 60 "$out/e2e-full.txt" "$build/kvsim" validate e2e --method full -o "$out/e2e-full.json"
for method in streaming-llm h2o zeromerge; do
  part "e2e $method" 30 "$out/e2e-$method.txt" "$build/kvsim" validate e2e --method "$method" \
    --budget 1024 -o "$out/e2e-$method.json"
done
mkdir -p "$out/torch"
python=$(command -v python3 || true)
if [ -n "$python" ]; then
  part "torch allocator" 60 "$out/torch/allocator.txt" "$python" "$root/validation/torch/allocator.py" \
    --kvsim "$build/kvsim" -o "$out/torch/allocator"
  part "torch sdpa" 40 "$out/torch/sdpa.txt" "$python" "$root/validation/torch/sdpa.py" \
    --library "$build/libkvsim_decode.so" -o "$out/torch/sdpa.json"
else
  echo "torch: skipped, there is no python3" >>"$out/summary.txt"
fi
describe after >>"$out/device.txt" 2>&1 || true
cat "$out/summary.txt"
echo "results: $out"
exit "$status"
