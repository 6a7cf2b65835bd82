#!/usr/bin/env bash
# `./kv build` with a fake cmake: progress with the remaining time, no compiler output unless the build fails. Usage:
# kv_build.sh KV SCRATCH
set -euo pipefail
kv=$1 scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/bin"
cp "$kv" "$scratch/kv"
cat >"$scratch/bin/cmake" <<'STUB'
#!/usr/bin/env bash
[ "$1" = --build ] || { echo "-- The CXX compiler identification is GNU"; exit 0; }
[ "$NINJA_STATUS" = '[%f/%t %e s] ' ] || exit 3
echo "[1/4 31.0 s] Building CXX object one.cpp.o"
echo "[2/4 62.5 s] Building CXX object two.cpp.o"
[ -e broken ] || { echo "[4/4 90.0 s] Linking CXX executable kvsim"; exit 0; }
echo "FAILED: three.cpp.o"
echo "three.cpp:7:1: error: expected ';'"
exit 1
STUB
# All packages are here.
printf '#!/bin/sh\necho installed\n' >"$scratch/bin/dpkg-query"
for name in apt-get c++ ninja gnuplot python3; do printf '#!/bin/sh\n' >"$scratch/bin/$name"; done
chmod +x "$scratch"/bin/*
cd "$scratch"

fail() { printf '%s\n' "kv_build: $1" "$(cat out.txt)" >&2; exit 1; }
PATH=$scratch/bin:$PATH ./kv build >out.txt 2>&1 || fail "a good build failed"
grep -q 'kv: 2 of 4 steps, about 62 s left' out.txt || fail "no progress with the time left"
! grep -q 'Building CXX\|compiler identification' out.txt || fail "compiler output of a good build"
touch broken
! PATH=$scratch/bin:$PATH ./kv build >out.txt 2>&1 || fail "a broken build succeeded"
grep -q "three.cpp:7:1: error: expected ';'" out.txt || fail "no compiler output of a broken build"
! grep -q 'Building CXX' out.txt || fail "lines of steps that did not fail"
