#include "models/cost/kernels/forms/plain.hpp"

#include <algorithm>

#include "models/cost/kernels/work.hpp"

namespace kvsim {

double plain_microseconds(const KernelCall& call, const KernelFormat& format, const KernelGpu& gpu,
                          const double* c) {
  const KernelWork w = work_of(call, format);
  double bandwidth = gpu.bandwidth;
  if (op_of(call) == KernelOp::kCollective) {
    bandwidth = (gpu.nvlink > 0 ? gpu.nvlink : 2 * gpu.pcie) / 2;
  } else if (const auto* copy = std::get_if<CopyCall>(&call);
             copy && copy->kind != CopyKind::kDevice) {
    bandwidth = gpu.host_link;
  }
  return c[0] +
         1e6 * std::max(w.flops / (gpu.peak(format.compute) * c[1]), w.bytes / (bandwidth * c[2]));
}

}  // namespace kvsim
