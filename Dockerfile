# kvsim in a container: docker build -t kvsim . && docker run --rm -v "$PWD:/work" kvsim run my.json
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ cmake ninja-build libfmt-dev libeigen3-dev nlohmann-json3-dev \
      libboost-dev libboost-context-dev libboost-graph-dev libboost-program-options-dev
COPY . /src
# x86-64-v3 requires AVX2 (processors since about 2015); for any x86-64: --build-arg KVSIM_ARCH=x86-64.
ARG KVSIM_ARCH=x86-64-v3
RUN cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DKVSIM_CUDA=OFF \
      -DKVSIM_ARCH=$KVSIM_ARCH \
 && cmake --build /build --target kvsim kvsim-validate \
 && cmake --install /build --prefix /opt/kvsim --strip --component program

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
      libfmt9 libboost-context1.74.0 libboost-program-options1.74.0 gnuplot-nox fonts-dejavu-core \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/kvsim /usr/local
WORKDIR /work
ENTRYPOINT ["kvsim"]
CMD ["help"]
