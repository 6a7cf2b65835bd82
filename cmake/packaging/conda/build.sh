#!/usr/bin/env bash
set -euo pipefail
cmake -S . -B build-conda -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DKVSIM_CUDA=OFF -DKVSIM_MPI=OFF \
  -DKVSIM_PYTHON=OFF -DCMAKE_INSTALL_PREFIX="$PREFIX" -DCMAKE_PREFIX_PATH="$PREFIX"
cmake --build build-conda --target kvsim kvsim-validate
cmake --install build-conda --component program
