#include <string>

#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

struct Entry {
  const char* name;
  const char* family;  // family in the cost model, whose efficiency predicts the time
  void (*cases)(Bench&);
};

/// One line per kernel.
constexpr Entry kEntries[] = {
    {"stream_read", "elementwise", stream_read_cases},
    {"stream_write", "elementwise", stream_write_cases},
    {"stream_copy", "elementwise", stream_copy_cases},
    {"stream_triad", "elementwise", stream_triad_cases},
    {"decode_attention", "decode_attention", decode_attention_cases},
    {"paged_attention", "decode_attention", paged_attention_cases},
    {"decode_kivi", "decode_attention", decode_kivi_cases},
    {"decode_fp8", "decode_attention", decode_fp8_cases},
    {"decode_token_head", "decode_attention", decode_token_head_cases},
    {"decode_int4", "decode_attention", decode_int4_cases},
    {"decode_nvfp4", "decode_attention", decode_nvfp4_cases},
    {"decode_turboquant", "decode_attention", decode_turboquant_cases},
    {"decode_folded", "decode_attention", decode_folded_cases},
    {"kivi_quantise_keys", "method", kivi_quantise_keys_cases},
    {"kivi_quantise_values", "method", kivi_quantise_values_cases},
    {"quantise_fp8", "cache_write", quantise_fp8_cases},
    {"quantise_token_head", "cache_write", quantise_token_head_cases},
    {"quantise_int4", "cache_write", quantise_int4_cases},
    {"quantise_nvfp4", "cache_write", quantise_nvfp4_cases},
    {"quantise_turboquant", "cache_write", quantise_turboquant_cases},
    {"rotate_rows", "method", rotate_rows_cases},
    {"prefill_scores", "score_pass", prefill_score_cases},
    {"eager_scores", "score_pass", eager_score_cases},
    {"score_row", "score_pass", score_row_cases},
    {"update_scores", "method", update_scores_cases},
    {"update_log_average", "method", log_average_cases},
    {"fuse_window", "method", fuse_window_cases},
    {"argmin_rows", "method", argmin_cases},
    {"top_rows", "method", top_cases},
    {"threshold_rows", "method", threshold_cases},
    {"gather_entries", "compaction", gather_cases},
    {"gather_pages", "compaction", gather_page_cases},
    {"fetch_pages", "host_copy", fetch_cases},
    {"offload_entries", "host_copy", offload_cases},
    {"evict_lazily", "compaction", lazy_page_cases},
    {"slerp_rows", "method", slerp_cases},
    {"retain_rows", "method", retain_cases},
    {"zip_merge_pairs", "compaction", zip_merge_cases},
    {"residual_merge", "compaction", residual_merge_cases},
    {"nearest_keys", "compaction", nearest_key_cases},
    {"cosine_merge_entries", "compaction", cosine_merge_cases},
    {"spread_values", "compaction", spread_value_cases},
    {"linear_scores", "method", linear_score_cases},
    {"mlp_scores", "method", mlp_score_cases},
    {"gemm", "gemm", gemm_cases},
    {"gemv", "gemm", gemv_cases},
    {"cublaslt", "gemm", library_gemm_cases},
    {"append_entries", "cache_write", append_cases},
    {"concat_entries", "concat_copy", concat_cases},
    {"move_entries", "compaction", move_cases},
    {"softmax_rows", "elementwise", softmax_cases},
    {"rms_norm_rows", "norm", rms_norm_cases},
    {"split_and_rotate", "rope", rotate_cases},
    {"gate_product", "elementwise", gate_cases},
    {"add_rows", "elementwise", add_cases},
    {"open_slots", "method", open_slot_cases},
    {"choose_victims", "method", choose_victim_cases},
    {"count_bias", "method", count_bias_cases},
    {"fill_random", "elementwise", fill_cases},
    {"copy_values", "elementwise", copy_value_cases},
};

std::vector<kernels::KernelResult> run_suite(const kernels::SuiteOptions& options) {
  std::vector<kernels::KernelResult> results;
  bool found = options.only.empty();
  for (const Entry& entry : kEntries) {
    if (!options.only.empty() && options.only != entry.name) continue;
    found = true;
    Bench bench{options, entry.name, entry.family, results};
    entry.cases(bench);
  }
  KVSIM_LAUNCH_CHECK(found, "options.only is a kernel of the suite");
  return results;
}

}  // namespace
}  // namespace kvsim::KVSIM_EXECUTOR

namespace kvsim::kernels {

#ifdef __CUDACC__
std::vector<KernelResult> run_suite_on_device(const SuiteOptions& options) {
  on_gpu::check_cuda(cudaSetDevice(0), "cudaSetDevice", __FILE__, __LINE__);
  return on_gpu::run_suite(options);
}
std::string device_fault() {
  const cudaError_t status = cudaDeviceSynchronize();
  return status == cudaSuccess ? std::string{} : cudaGetErrorName(status);
}
#else
std::vector<std::string> suite_kernels() {
  std::vector<std::string> names;
  for (const on_sim::Entry& entry : on_sim::kEntries) names.emplace_back(entry.name);
  return names;
}
std::vector<KernelResult> run_suite_in_simulator(const SuiteOptions& options) {
  return on_sim::run_suite(options);
}
#endif

}  // namespace kvsim::kernels
