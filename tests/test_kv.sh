#!/usr/bin/env bash
# The functions of ./kv that install packages and check skipped tests: test_kv.sh KV SCRATCH
# apt-get, dpkg-query and id are stubs: nothing is installed.
unset KVSIM_OBJECT_SECONDS  # set by users with slow machines
source "$1"
scratch=$2
set +e
mkdir -p "$scratch"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
expect() { # NAME TEXT PATTERN: TEXT matches PATTERN
  grep -qE -- "$3" <<< "$2" || fail "$1: no \"$3\" in: $2"
}

# report_skips
skips() { # LINE…: a log with these lines of output
  { echo "1/2 Testing: a"; echo 'Command: "echo" "KVSIM-SKIPPED: of a command"'; printf '%s\n' "$@"
    echo "Skip regular expression found in output. Regex=[KVSIM-SKIPPED]"; } > "$scratch/log"
  report_skips "$scratch/log"
}
out=$(skips) || fail "a log without a skip fails"
expect "no skip" "$out" "No test was skipped"
out=$(skips "KVSIM-SKIPPED: KVSIM_DATA_DIR is not set") || fail "a listed reason fails: $out"
expect "a listed reason" "$out" "KVSIM_DATA_DIR is not set \(1\)"
out=$(skips "x.cpp(3): MESSAGE: KVSIM-SKIPPED: no GPU: the driver is missing") || fail "a detail fails: $out"
expect "a detail" "$out" "no GPU: the driver is missing \(1\)"
for reason in "built without MPI" "no mpirun in PATH" "pybind11 was not found (pybind11-dev)" \
  "no Python with NumPy was found (python3-numpy)" "no Chromium is installed: KVSIM_CHROMIUM names one" \
  "gnuplot is not installed" "no GPU in this test" ""; do
  out=$(skips "KVSIM-SKIPPED: no GPU" "KVSIM-SKIPPED: $reason") && fail "\"$reason\" is accepted"
  expect "an unlisted reason" "$out" "FAILED: tests of shipped features were skipped"
done
skip_part "CUDA" "no nvcc" > /dev/null || fail "a listed reason of a part fails"
skip_part "sanitizers" "no clang 16 or later" > /dev/null && fail "an unlisted reason of a part is accepted"

# check_objects: the last entry of each object counts; CUDA objects are ignored.
{ printf '# ninja log v5\n'; printf '0\t20000\t0\ta.o\t1\n0\t14000\t0\ta.o\t1\n0\t44000\t0\tb.cu.o\t1\n0\t99000\t0\tprogram\t1\n'; } > "$scratch/.ninja_log"
out=$(check_objects "$scratch") || fail "an object of 14 s fails: $out"
expect "the slowest object" "$out" "1 objects, the slowest in 14.0 s during the build: a.o"
printf '5\t30105\t0\tc.o\t1\n' >> "$scratch/.ninja_log"
object_seconds() { echo 15.1; }
out=$(check_objects "$scratch") && fail "an object that takes 15.1 s alone is accepted"
expect "an object that is too slow" "$out" " 15.1 s c.o"
object_seconds() { echo 14.9; }
out=$(check_objects "$scratch") || fail "an object that takes 14.9 s alone fails: $out"
object_seconds() { return 1; }
check_objects "$scratch" > /dev/null 2>&1 && fail "an object that does not compile is accepted"

# setup: missing packages are installed; a package that apt does not know does not block the others.
here=" ${REQUIRED[*]} ${OPTIONAL[*]} "
present() { [[ $here == *" $1 "* ]]; }
dpkg-query() { return 1; }
id() { echo 0; }
env() { "${@:2}"; }
apt-get() {
  [[ $* == *" install "* ]] || return 0
  local package
  [[ $* != *unknown* ]] || return 100
  for package in "${@:7}"; do here+="$package "; done
}
(setup "${TESTED[@]}" 2> "$scratch/err") || fail "setup fails"
setup "${TESTED[@]}" unknown-package 2> "$scratch/err"
for package in openmpi-bin libopenmpi-dev libboost-mpi-dev pybind11-dev python3-dev python3-numpy chromium; do
  present "$package" || fail "$package is not installed"
done
expect "a missing package" "$(cat "$scratch/err")" "continuing without unknown-package$"
here=${here/ cmake / }
apt-get() { return 100; }
out=$( (setup) 2>&1) && fail "setup continues without cmake"
expect "a missing needed package" "$out" "these packages are missing: cmake"

# test installs packages and checks skips.
setup() { echo "setup $*"; }
build() { :; }
run_tests() { return 3; }
report_missing() { :; }
out=$(cmd_test)
[ $? -eq 3 ] || fail "cmd_test does not fail with run_tests"
expect "cmd_test" "$out" "setup .*openmpi-bin .*python3-numpy .*chromium"
[ "$failures" -eq 0 ] || exit 1
echo "kv installs packages and checks skips as expected"
