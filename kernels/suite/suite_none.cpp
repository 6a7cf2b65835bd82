#include <stdexcept>

#include "kernels/suite/bench/result.hpp"

namespace kvsim::kernels {

std::vector<KernelResult> run_suite_on_device(const SuiteOptions& /*options*/) {
  throw std::runtime_error{"kvsim was built without CUDA"};
}

std::string device_fault() { return "kvsim was built without CUDA"; }

}  // namespace kvsim::kernels
