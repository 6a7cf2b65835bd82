#include "models/cost/kernels/form.hpp"

#include <algorithm>

#include "models/cost/kernels/work.hpp"

namespace kvsim {

const KernelForm& form_of(KernelOp op) {
  switch (op) {
    case KernelOp::kDecodeAttention:
      return decode_attention_form();
    case KernelOp::kPrefillAttention:
      return prefill_attention_form();
    case KernelOp::kMla:
      return mla_form();
    case KernelOp::kGemm:
      return gemm_form();
    case KernelOp::kGroupedGemm:
      return grouped_gemm_form();
    case KernelOp::kMoe:
      return moe_form();
    case KernelOp::kElementwise:
      return elementwise_form();
    case KernelOp::kCollective:
      return collective_form();
    case KernelOp::kRecurrence:
      return recurrence_form();
    case KernelOp::kConvolution:
      return convolution_form();
    case KernelOp::kIndexScores:
      return index_scores_form();
    case KernelOp::kIndexChoice:
      return index_choice_form();
    case KernelOp::kSparseAttention:
      return sparse_attention_form();
    case KernelOp::kCopy:
      break;
  }
  return copy_form();
}

double ideal_microseconds(const KernelCall& call, const KernelFormat& format,
                          const KernelGpu& gpu) {
  const KernelWork w = work_of(call, format);
  if (const auto* c = std::get_if<CollectiveCall>(&call)) {
    // A ring moves 2 (n-1)/n of the buffer per GPU, over one direction of its link.
    const double link = (gpu.nvlink > 0 ? gpu.nvlink : 2 * gpu.pcie) / 2;
    const double moved = c->kind == CollectiveKind::kAllReduce ? 2.0 : 1.0;
    return 1e6 * w.bytes * moved * (c->gpus - 1) / c->gpus / link;
  }
  if (const auto* c = std::get_if<CopyCall>(&call); c && c->kind != CopyKind::kDevice) {
    return 1e6 * w.bytes / gpu.host_link;
  }
  return 1e6 * std::max(w.flops / gpu.peak(format.compute), w.bytes / gpu.bandwidth);
}

}  // namespace kvsim
