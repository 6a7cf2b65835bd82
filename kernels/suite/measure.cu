#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/basic/bandwidth.hpp"
#include "kernels/basic/copies.hpp"
#include "kernels/suite/bench/array.hpp"
#include "kernels/suite/library_gemm.hpp"
#include "kernels/suite/measure.hpp"

#define KVSIM_MEASURE(call) on_gpu::check_cuda((call), #call, __FILE__, __LINE__)

namespace kvsim::kernels {
namespace {

using on_gpu::Array;
using on_gpu::Machine;
using on_gpu::Stream;

constexpr int kWarmUp = 3;
constexpr std::size_t kSamples = 25;

/// A separate stream. Timed work is enclosed by two events on it.
class OwnStream {
 public:
  OwnStream() { KVSIM_MEASURE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void wait() const { KVSIM_MEASURE(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Mark {
 public:
  Mark() { KVSIM_MEASURE(cudaEventCreate(&event_)); }
  ~Mark() { cudaEventDestroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  void record(cudaStream_t stream) { KVSIM_MEASURE(cudaEventRecord(event_, stream)); }
  /// Makes work enqueued on `stream` after this call wait for this event.
  void hold(cudaStream_t stream) const { KVSIM_MEASURE(cudaStreamWaitEvent(stream, event_, 0)); }
  [[nodiscard]] double us_since(const Mark& start) const {
    KVSIM_MEASURE(cudaEventSynchronize(event_));
    float ms = 0;
    KVSIM_MEASURE(cudaEventElapsedTime(&ms, start.event_, event_));
    return 1e3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Sampled {
  double median = 0, spread = 0;
};

/// Microseconds of `work(stream)` between two events on the stream.
Sampled sample(const OwnStream& on, const std::function<void(cudaStream_t)>& work) {
  Mark start;
  Mark end;
  for (int i = 0; i < kWarmUp; ++i) work(on.get());
  std::vector<double> us;
  for (std::size_t i = 0; i < kSamples; ++i) {
    start.record(on.get());
    work(on.get());
    end.record(on.get());
    us.push_back(end.us_since(start));
  }
  std::sort(us.begin(), us.end());
  const double median = us[kSamples / 2];
  const double quartiles = us[3 * kSamples / 4] - us[kSamples / 4];
  return {median, median > 0 ? quartiles / 2 / median : 0};
}

Measurement made(std::string name, std::string shape, std::string unit, double value,
                 double spread) {
  return {std::move(name), std::move(shape), std::move(unit),
          value,           spread,           static_cast<std::int32_t>(kSamples)};
}

/// cudaMemcpyAsync in both directions, with pinned and with pageable memory.
void host_copies(std::vector<Measurement>& out) {
  const OwnStream stream;
  for (const std::size_t kib : {64, 1024, 16 * 1024, 256 * 1024}) {
    const std::size_t bytes = kib * 1024;
    Machine machine;
    Array<char> device{machine, "device", static_cast<std::int64_t>(bytes)};
    void* on_device = device.span().data;
    void* pinned = nullptr;
    KVSIM_MEASURE(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    const std::unique_ptr<void, void (*)(void*)> owner{pinned, [](void* p) { cudaFreeHost(p); }};
    std::vector<char> pageable(bytes, 1);
    for (const bool is_pinned : {true, false}) {
      void* host = is_pinned ? pinned : pageable.data();
      for (const bool to_device : {true, false}) {
        const Sampled us = sample(stream, [&](cudaStream_t s) {
          KVSIM_MEASURE(to_device
                            ? cudaMemcpyAsync(on_device, host, bytes, cudaMemcpyHostToDevice, s)
                            : cudaMemcpyAsync(host, on_device, bytes, cudaMemcpyDeviceToHost, s));
        });
        out.push_back(made("host_copy",
                           std::to_string(kib) + " KiB " + (is_pinned ? "pinned" : "pageable") +
                               (to_device ? ", to the device" : ", to the host"),
                           "GB/s", static_cast<double>(bytes) / us.median / 1e3, us.spread));
      }
    }
  }
}

/// Cost per launch of many small launches, issued one by one on a stream and replayed as a graph.
void graph_capture(std::vector<Measurement>& out) {
  constexpr int kLaunches = 64;
  const OwnStream stream;
  Machine machine;
  const BandwidthShape shape{.n = 1024, .blocks = 1};
  Array<float> from{machine, "from", shape.n};
  Array<float> to{machine, "to", shape.n};
  const auto many = [&](cudaStream_t s) {
    for (int i = 0; i < kLaunches; ++i) {
      on_gpu::stream_copy(Stream{s}, shape, from.span(), to.span());
    }
  };
  const Sampled alone = sample(stream, many);
  out.push_back(made("graph", "64 copies of 4 KiB, one by one", "us a launch",
                     alone.median / kLaunches, alone.spread));
  cudaGraph_t graph = nullptr;
  KVSIM_MEASURE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  many(stream.get());
  KVSIM_MEASURE(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t ready = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
  cudaGraphDestroy(graph);
  KVSIM_MEASURE(status);
  const std::unique_ptr<CUgraphExec_st, void (*)(cudaGraphExec_t)> owner{
      ready, [](cudaGraphExec_t g) { cudaGraphExecDestroy(g); }};
  const Sampled replayed =
      sample(stream, [&](cudaStream_t s) { KVSIM_MEASURE(cudaGraphLaunch(ready, s)); });
  out.push_back(made("graph", "64 copies of 4 KiB, captured", "us a launch",
                     replayed.median / kLaunches, replayed.spread));
}

/// Share of the shorter of two workloads that is hidden by the other on a second stream: 1 all, 0
/// none.
void two_streams(std::vector<Measurement>& out) {
  const OwnStream first;
  const OwnStream second;
  Machine machine;
  constexpr std::int64_t kNumbers = std::int64_t{1} << 26;
  constexpr std::size_t kBytes = std::size_t{64} << 20U;
  Array<float> from{machine, "from", kNumbers};
  Array<float> to{machine, "to", kNumbers};
  Array<float> other_from{machine, "other from", kNumbers};
  Array<float> other_to{machine, "other to", kNumbers};
  Array<char> fetched{machine, "fetched", static_cast<std::int64_t>(kBytes)};
  void* pinned = nullptr;
  KVSIM_MEASURE(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault));
  const std::unique_ptr<void, void (*)(void*)> owner{pinned, [](void* p) { cudaFreeHost(p); }};
  const auto copy = [&](cudaStream_t s) {
    on_gpu::stream_copy(Stream{s}, {.n = kNumbers, .blocks = 1024}, from.span(), to.span());
  };
  const auto other_copy = [&](cudaStream_t s) {
    on_gpu::stream_copy(Stream{s}, {.n = kNumbers, .blocks = 1024}, other_from.span(),
                        other_to.span());
  };
  const auto fetch = [&](cudaStream_t s) {
    KVSIM_MEASURE(cudaMemcpyAsync(fetched.span().data, pinned, kBytes, cudaMemcpyHostToDevice, s));
  };
  Mark fork;
  Mark join;
  const auto hidden = [&](const char* shape, const auto& a, const auto& b) {
    const Sampled of_a = sample(first, a);
    const Sampled of_b = sample(first, b);
    const Sampled both = sample(first, [&](cudaStream_t s) {
      fork.record(s);
      fork.hold(second.get());
      b(second.get());
      a(s);
      join.record(second.get());
      join.hold(s);
    });
    second.wait();
    out.push_back(
        made("streams", shape, "share hidden",
             (of_a.median + of_b.median - both.median) / std::min(of_a.median, of_b.median),
             both.spread));
  };
  hidden("a copy in memory and a fetch from the host", copy, fetch);
  hidden("two copies in memory", copy, other_copy);
}

}  // namespace

std::vector<Measurement> measure_device() {
  std::vector<Measurement> out;
  int devices = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&devices);
      status != cudaSuccess || devices == 0) {
    (void)cudaGetLastError();
    Measurement none;
    none.name = "all";
    none.skipped = std::string{"the CUDA runtime finds no device: "} + cudaGetErrorString(status);
    return {none};
  }
  KVSIM_MEASURE(cudaSetDevice(0));
  // A failing measurement skips only its own remaining values.
  const auto apart = [&](const char* name, void (*measure)(std::vector<Measurement>&)) {
    try {
      measure(out);
    } catch (const std::exception& error) {
      (void)cudaGetLastError();
      Measurement none;
      none.name = name;
      none.skipped = error.what();
      out.push_back(none);
    }
  };
  apart("host_copy", host_copies);
  apart("graph", graph_capture);
  apart("streams", two_streams);
  apart("cublas_gemm", library_gemm);
  return out;
}

}  // namespace kvsim::kernels
