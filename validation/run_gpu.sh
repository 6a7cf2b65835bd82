#!/bin/sh
# Builds kvsim with CUDA and runs its kernels on the first GPU, unattended: correctness against the
# references, then times. Leaves a folder to send us.
#
#   validation/run_gpu.sh [RESULT_FOLDER]
#
# RESULT_FOLDER  kernels/ (result.json, figures), calibration.json,
#                simulator.json (the same kernels' counted bytes),
#                device.txt (name, driver, clocks, power state, memory in use, before and after), build.txt
# Needs: nvcc 12.4 or later, an NVIDIA GPU with nothing else running, cmake, ninja, the libraries
# that README.md lists. Exit status: 0 all pass, 1 a kernel failed, 2 no build or no device.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-kvsim-gpu-$(date -u +%Y%m%d-%H%M%S)}
case $out in /*) ;; *) out=$(pwd)/$out ;; esac
if [ -e "$out" ]; then
  echo "run_gpu.sh: $out is there already; name another folder" >&2
  exit 2
fi
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
    cmake --build "$build" --target kvsim
} >"$out/build.txt" 2>&1 || {
  echo "run_gpu.sh: the build failed; its last lines, all of it in $out/build.txt:" >&2
  tail -n 15 "$out/build.txt" >&2
  exit 2
}

describe before >"$out/device.txt" 2>&1 || true
"$build/kvsim" list devices >>"$out/device.txt"
"$build/kvsim" validate kernels --json >"$out/simulator.json"
status=0
"$build/kvsim" validate kernels --device cuda -o "$out/kernels" || status=$?
[ "$status" -ne 0 ] || "$build/kvsim" calibrate --device cuda -o "$out/calibration.json" >"$out/calibration.txt"
describe after >>"$out/device.txt" 2>&1 || true
[ "$status" -le 1 ] || exit "$status"
echo "results: $out"
exit "$status"
