#pragma once

// Times of launches on a GPU. Only for nvcc.

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/suite/bench/result.hpp"

namespace kvsim::on_gpu {

/// Memory of twice the L2 cache that is written before every sample, so that no data of a launch is
/// in the cache.
class CacheFlush {
 public:
  CacheFlush() {
    int device = 0;
    int l2 = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice", __FILE__, __LINE__);
    check_cuda(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device),
               "cudaDeviceGetAttribute", __FILE__, __LINE__);
    bytes_ = 2 * static_cast<std::size_t>(l2);
    check_cuda(cudaMalloc(&data_, bytes_), "cudaMalloc", __FILE__, __LINE__);
  }
  ~CacheFlush() { cudaFree(data_); }
  CacheFlush(const CacheFlush&) = delete;
  CacheFlush& operator=(const CacheFlush&) = delete;
  void run() const {
    check_cuda(cudaMemsetAsync(data_, 0, bytes_), "cudaMemsetAsync", __FILE__, __LINE__);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate", __FILE__, __LINE__); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { check_cuda(cudaEventRecord(event_), "cudaEventRecord", __FILE__, __LINE__); }
  /// Waits for this event.
  [[nodiscard]] double us_since(const Event& start) const {
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize", __FILE__, __LINE__);
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime", __FILE__,
               __LINE__);
    return 1e3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Median and spread of 25 samples between events, after 3 launches as a warm-up.
inline kernels::KernelTiming time_launch(const std::function<void(Stream)>& launch) {
  constexpr int kWarmUp = 3;
  constexpr std::size_t kSamples = 25;
  const CacheFlush flush;
  Event start;
  Event end;
  for (int i = 0; i < kWarmUp; ++i) launch({});
  std::vector<double> us;
  for (std::size_t i = 0; i < kSamples; ++i) {
    flush.run();
    start.record();
    launch({});
    end.record();
    us.push_back(end.us_since(start));
  }
  std::sort(us.begin(), us.end());
  const double median = us[kSamples / 2];
  const double quartiles = us[3 * kSamples / 4] - us[kSamples / 4];
  return {median, median > 0 ? quartiles / 2 / median : 0, static_cast<std::int32_t>(kSamples)};
}

}  // namespace kvsim::on_gpu
