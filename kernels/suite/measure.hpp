#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Measurements of a GPU other than its kernels' times: the cost of a launch on its own and in a
// graph, the overlap of two streams, the rate of the host link, the rates of the libraries'
// products.

namespace kvsim::kernels {

struct Measurement {
  std::string name;   // "host_copy", "graph", "streams", "cublas_gemm", "cublaslt_gemm", …
  std::string shape;  // "256 MiB pinned, to the device"
  std::string unit;   // of value: "us", "GB/s", "TFLOP/s", "share"
  double value = 0;   // median
  double spread = 0;  // half the interquartile range, of the median
  std::int32_t samples = 0;
  std::string skipped{};  // why there is no value; empty: there is one
};

/// All of them on the first CUDA device, those that want a library that is missing skipped with the
/// reason. Where there is no device, or no CUDA in this build, one entry that says so.
[[nodiscard]] std::vector<Measurement> measure_device();

}  // namespace kvsim::kernels
