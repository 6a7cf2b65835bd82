// Notes on the basis of a service's result: sources of times, assumptions, the reason why no prefix
// was found, the number of GPUs on which it would start.

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/batch/assumptions.hpp"
#include "sim/serve/service/serve_context.hpp"

namespace kvsim {

std::string ServeContext::provenance() const {
  if (calibration_.kernels == nullptr || !stack_.kernels.empty()) return calibration_.provenance;
  return fmt::format(
      "no fitted kernels, stack {} names none: {}", stack_.name,
      roofline_.is_bound() ? "rates of the data sheet" : "shares of the data sheet by its profile");
}

std::string ServeContext::would_start() const {
  constexpr std::int32_t kMaxGpus = 64;
  ServeSpec other = spec_;
  if (other.options.prefill_context.value_or(1) > 1) {
    other.options.prefill_context.reset();
    other.options.expert_parallel.reset();
  }
  const ServeHooks none;
  for (other.tensor_parallel = spec_.tensor_parallel + 1; other.tensor_parallel <= kMaxGpus;
       ++other.tensor_parallel) {
    try {
      const ServeContext site{other, none};
      if (!site.cannot_start().empty()) continue;
    } catch (const InputError&) {
      continue;  // the model's heads cannot be divided by this number
    }
    return fmt::format("it starts on {} GPUs under tensor parallelism", other.tensor_parallel);
  }
  return fmt::format("it does not start on {} GPUs under tensor parallelism either", kMaxGpus);
}

std::vector<std::string> ServeContext::notes() const {
  std::vector<std::string> notes = notes_;
  if (spec_.method.name != "full" || !stack_.defaults) {
    notes.push_back(
        fmt::format("no service of this kind was compared with a real one: intervals come from "
                    "static runs; {}",
                    time_residual(in_, RunPhase::kDecode).basis));
  }
  if (spec_.scheduler.swap.value_or(false)) {
    notes.push_back(fmt::format("swap: copies between a GPU and its host reach {} of {}'s {}",
                                host_rate(), spec_.gpu->c2c ? "C2C" : "PCIe",
                                spec_.gpu->c2c.value_or(spec_.gpu->pcie)));
  }
  const StaticSpec typical{.llm = spec_.llm,
                           .gpu = spec_.gpu,
                           .stack = spec_.stack,
                           .method = typical_,
                           .weight_dtype = spec_.weight_dtype,
                           .kv_dtype = spec_.kv_dtype,
                           .batch = 0,
                           .prompt_tokens = typical_prompt_,
                           .tensor_parallel = spec_.tensor_parallel};
  const std::vector<std::string> assumed = assumptions(typical, in_);
  notes.insert(notes.end(), assumed.begin(), assumed.end());
  if (const auto& none = footprints_.unresolved(); none.lengths > 0) {
    notes.push_back(fmt::format("prompts of {} lengths from {} to {} tokens hold every token: {}",
                                none.lengths, none.shortest, none.longest, none.why));
  }
  if (spec_.measured) {
    notes.push_back(
        fmt::format("size law of {}: as measured on {}", spec_.method.name, spec_.measured->trace));
  }
  return notes;
}

std::string ServeContext::no_hits_text() const {
  const GroupSizes* groups = sizes_ ? sizes_->groups() : nullptr;
  if (groups == nullptr) return {};
  const RequestTrace& trace = *spec_.requests;
  std::unordered_set<std::uint64_t> seen;
  std::int64_t longest = 0;
  for (const Request& r : trace.requests) {
    bool shared = true;
    for (std::int32_t i = 0; i < r.prefix_count; ++i) {
      const auto at = static_cast<std::size_t>(r.prefix_first) + static_cast<std::size_t>(i);
      shared = !seen.insert(trace.prefix_ids[at]).second && shared;
      if (!shared) continue;
      longest = std::max(longest, std::min(std::int64_t{r.prompt_tokens},
                                           std::int64_t{i + 1} * trace.prefix_block));
    }
  }
  if (longest == 0) return "no prefix was found: no two prompts begin with the same tokens";
  const std::string found = fmt::format(
      "no prefix was found, although prompts share up to {} tokens: ", with_commas(longest));
  if (longest < groups->block_tokens()) {
    return found + fmt::format("a block has {}", with_commas(groups->block_tokens()));
  }
  if (groups->state_ids() == 0) {
    return found + "they were computed at the same time, or their blocks have since been evicted";
  }
  return found +
         fmt::format(
             "a state is kept only where a prefill step ends on a whole block of {} tokens, and "
             "none was kept within the shared part, or it has since been evicted",
             with_commas(groups->block_tokens()));
}

}  // namespace kvsim
