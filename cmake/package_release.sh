#!/usr/bin/env bash
# package_release.sh BUILD DIST: writes the files of a release to DIST from a finished build: a source archive, Debian
# packages and a wheel. ./kv release calls it.
set -euo pipefail
build=$(cd "$1" && pwd)
mkdir -p "$2"
dist=$(cd "$2" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^project(kvsim VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[ -n "$version" ] || { echo "CMakeLists.txt: project() has no version" >&2; exit 1; }

git archive --format=tar.gz --prefix="kvsim-$version/" -o "$dist/kvsim-$version.tar.gz" HEAD

cpack --config "$build/CPackConfig.cmake" -B "$dist" >"$dist/cpack.log" || { cat "$dist/cpack.log" >&2; exit 1; }
rm -rf "$dist/_CPack_Packages" "$dist/cpack.log"

# The wheel is for one interpreter. It contains the module, the program without MPI, and the shared libraries of both,
# except those of C and C++.
python=$(sed -n 's/^_Python_EXECUTABLE:[A-Z]*=//p' "$build/CMakeCache.txt")
[ -n "$python" ] || { echo "$build has no Python module: install python3-dev and pybind11-dev" >&2; exit 1; }
tag=$("$python" -c 'import sys, sysconfig
cp = f"cp{sys.version_info.major}{sys.version_info.minor}"
print(f"{cp}-{cp}-" + sysconfig.get_platform().replace("-", "_").replace(".", "_"))')
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
cmake --build "$build" --target kvsim_bundled kvsim-validate_bundled >"$wheel/log" 2>&1 ||
  { cat "$wheel/log" >&2; exit 1; }
cmake -DCMAKE_INSTALL_PREFIX="$wheel/prefix" -P "$build/sim/python/cmake_install.cmake" >/dev/null
package=$wheel/root/kvsim
mkdir -p "$wheel/root"
mv "$(dirname "$(find "$wheel/prefix" -path '*/kvsim/__init__.py')")" "$wheel/root/"
mkdir -p "$package/bin" "$package/lib"
cp "$build"/bundled/bin/* "$package/bin/"
strip "$package"/bin/*
ldd "$package"/bin/* "$package"/_core*.so | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so' | xargs -I{} cp -L {} "$package/lib/"
scripts=$wheel/root/kvsim-$version.data/scripts
mkdir -p "$scripts"
# Starts the program without importing the package, which needs NumPy.
cat >"$scripts/kvsim" <<'END'
#!python
import importlib.util
import os
import sys

package = os.path.dirname(importlib.util.find_spec("kvsim").origin)
os.execv(os.path.join(package, "bin", "kvsim"), ["kvsim", *sys.argv[1:]])
END
chmod +x "$scripts/kvsim"
info=$wheel/root/kvsim-$version.dist-info
mkdir -p "$info"
cp LICENSE NOTICE "$info/"
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: kvsim
Version: $version
Summary: Simulates KV-cache memory systems of LLM serving: memory, time, error
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
END
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: kvsim ($version)
Root-Is-Purelib: false
Tag: $tag
END
/usr/bin/python3 -m wheel pack "$wheel/root" --dest-dir "$dist" >/dev/null
ls -1 "$dist"
