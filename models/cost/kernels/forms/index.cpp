#include <algorithm>
#include <array>
#include <cmath>

#include "models/cost/kernels/form.hpp"
#include "models/cost/kernels/work.hpp"

namespace kvsim {
namespace {

namespace scores {

enum : std::size_t {
  kFixed,
  kCompute,
  kMemory,
  kPromptFixed,
  kPromptCompute,
  kPromptMemory,
  kCount
};

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {"fixed", "us", "decode: launch and set-up", 4, 0.5, 60},
    {"compute", "1", "decode: share of the 8-bit arithmetic peak", 0.3, 0.01, 1.2},
    {"memory", "1", "decode: share of the HBM bandwidth", 0.6, 0.02, 4},
    {"prompt_fixed", "us", "prompt: launch and set-up", 4, 0.5, 60},
    {"prompt_compute", "1", "prompt: share of the 8-bit arithmetic peak", 0.5, 0.01, 1.2},
    {"prompt_memory", "1", "prompt: share of the HBM bandwidth, scores in fp32", 0.7, 0.02, 4},
}};

/// Minimum keys that a thread block scores, and prompt queries per thread block, which iterates
/// over all of their keys (DeepGEMM, fp8_paged_mqa_logits and fp8_mqa_logits).
constexpr double kBlockKeys = 256;
constexpr double kBlockQueries = 4;

double microseconds(const KernelCall& any, const KernelFormat& format, const KernelGpu& gpu,
                    const double* c) {
  IndexScoresCall call = std::get<IndexScoresCall>(any);
  call.keys = std::max(call.keys, kBlockKeys);
  const KernelWork w = work_of(call, format);
  const std::size_t first = call.decode ? kFixed : kPromptFixed;
  const double blocks = call.batch * std::ceil(call.queries / kBlockQueries);
  const double busy = call.decode ? 1 : std::min(1.0, blocks / gpu.sms);
  return c[first] + 1e6 * std::max(w.flops / (gpu.peak(format.compute) * c[first + 1] * busy),
                                   w.bytes / (gpu.bandwidth * c[first + 2]));
}

}  // namespace scores

namespace choice {

enum : std::size_t { kFixed, kRow, kScore, kTogether, kCount };

constexpr std::array<Coefficient, kCount> kCoefficients{{
    {"fixed", "us", "launch", 3, 0.1, 60},
    {"row", "us", "fixed cost of a row longer than the chosen entries", 5, 0.05, 100},
    {"score", "ns", "one score of a row", 0.3, 0.005, 20},
    {"together", "rows", "rows processed simultaneously by an SM", 2, 0.5, 16},
}};

/// One thread block per row; rows that keep all their scores need no work.
double microseconds(const KernelCall& any, const KernelFormat&, const KernelGpu& gpu,
                    const double* c) {
  const auto& call = std::get<IndexChoiceCall>(any);
  if (call.length <= call.chosen) return c[kFixed];
  const double waves = std::max(1.0, call.rows / (gpu.sms * c[kTogether]));
  return c[kFixed] + waves * (c[kRow] + 1e-3 * c[kScore] * call.length);
}

}  // namespace choice
}  // namespace

const KernelForm& index_scores_form() {
  static constexpr KernelForm kForm{.id = "index-scores",
                                    .op = KernelOp::kIndexScores,
                                    .coefficients = scores::kCoefficients,
                                    .microseconds = scores::microseconds};
  return kForm;
}

const KernelForm& index_choice_form() {
  static constexpr KernelForm kForm{.id = "index-choice",
                                    .op = KernelOp::kIndexChoice,
                                    .coefficients = choice::kCoefficients,
                                    .microseconds = choice::microseconds};
  return kForm;
}

}  // namespace kvsim
