#include "models/cost/calibration.hpp"

namespace kvsim {

const Calibration& builtin_calibration() {
  static const Calibration calibration = [] {
    Calibration out{.id = "builtin",
                    .provenance = "kernels fitted to published timings (kvsim list calibrations); "
                                  "other operators at typical shares of the data sheet",
                    .kernels = &KernelLibrary::builtin()};
    // Streaming reads and writes reach 0.85-0.93 of HBM on A100 and H200 (te42kyfo/gpu-benches,
    // Azure/AI-benchmarking-guide BabelStream); large GEMM 0.71-0.84 of the arithmetic peak. How far
    // an operator of no measured kernel may lie from that is a judgement: 30 %.
    for (Efficiency& family : out.families) {
      family = {.flops = 0.75, .bandwidth = 0.88, .relative_residual = 0.3};
    }
    // Pinned copies: 26 of 32 GB/s over PCIe 4, 51 of 64 over PCIe 5 (Azure/AI-benchmarking-guide).
    out.families[static_cast<std::size_t>(OpFamily::kHostCopy)].bandwidth = 0.81;
    return out;
  }();
  return calibration;
}

}  // namespace kvsim
