#include <string>

#include "kernels/suite/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

struct Entry {
  const char* name;
  const char* family;  // the cost model's, by whose efficiency a time is predicted
  void (*cases)(Bench&);
};

/// One line a kernel.
constexpr Entry kEntries[] = {
    {"stream_read", "elementwise", stream_read_cases},
    {"stream_write", "elementwise", stream_write_cases},
    {"stream_copy", "elementwise", stream_copy_cases},
    {"stream_triad", "elementwise", stream_triad_cases},
    {"decode_attention", "decode_attention", decode_attention_cases},
    {"score_row", "score_pass", score_row_cases},
    {"update_scores", "method", update_scores_cases},
    {"argmin_rows", "method", argmin_cases},
    {"top_rows", "method", top_cases},
    {"gather_entries", "compaction", gather_cases},
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
  return on_gpu::run_suite(options);
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
