#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Measurements of a GPU besides kernel times: the cost of a launch by itself and in a graph, the
// overlap of two streams, the rate of the host link, and the rates of library products.

namespace kvsim::kernels {

struct Measurement {
  std::string name;   // "host_copy", "graph", "streams", "cublas_gemm", "cublaslt_gemm", …
  std::string shape;  // "256 MiB pinned, to the device"
  std::string unit;   // of value: "us", "GB/s", "TFLOP/s", "share"
  double value = 0;   // median
  double spread = 0;  // half the interquartile range over the median
  std::int32_t samples = 0;
  std::string skipped{};  // why there is no value; empty if there is one
};

/// Runs all measurements on the first CUDA device; those that require a missing library are skipped
/// with the reason. Without a device, or in a build without CUDA, returns one entry with the
/// reason.
[[nodiscard]] std::vector<Measurement> measure_device();

}  // namespace kvsim::kernels
