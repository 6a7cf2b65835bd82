// Default behaviour of the axes: entries of a prompt that are kept, entries that leave at a step,
// budgets without layer shares, readers of several heads.

#include "models/methods/select/select.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "models/methods/axes.hpp"
#include "models/units/check.hpp"

namespace kvsim {

std::vector<std::int32_t> Selector::plan(std::int32_t prompt, const EntryBudget& allotted) const {
  KVSIM_CHECK(allotted.entries >= 1 && prompt >= 1, "{} entries of {} tokens", allotted.entries,
              prompt);
  std::vector<std::int32_t> order(static_cast<std::size_t>(prompt));
  std::iota(order.begin(), order.end(), 0);
  if (allotted.entries >= prompt) return order;
  const auto entries = static_cast<std::size_t>(allotted.entries);
  std::vector<double> score(order.size());
  for (const std::int32_t id : order) {
    score[static_cast<std::size_t>(id)] = importance(id, prompt - 1, /*at_prefill=*/true);
  }
  const auto more_important = [&score](std::int32_t a, std::int32_t b) {
    const double x = score[static_cast<std::size_t>(a)];
    const double y = score[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(entries), order.end(),
                   more_important);
  order.resize(entries);
  std::sort(order.begin(), order.end());
  return order;
}

void Selector::leaving(const EntryTable& entries, std::int32_t newest, std::int64_t room,
                       std::vector<std::int32_t>& out) {
  const std::int64_t excess = entries.free_size() - room;
  if (excess <= 0) return;
  struct Candidate {
    double importance;
    std::int32_t id;
    [[nodiscard]] bool leaves_before(const Candidate& other) const {
      return importance != other.importance ? importance < other.importance : id > other.id;
    }
  };
  if (excess == 1) {  // the common case, without building a list
    Candidate worst{std::numeric_limits<double>::infinity(), -1};
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      if (entries.is_pinned(slot)) continue;
      const std::int32_t id = entries.id(slot);
      const Candidate each{importance(id, newest, /*at_prefill=*/false), id};
      if (each.importance < std::numeric_limits<double>::infinity() &&
          (worst.id < 0 || each.leaves_before(worst))) {
        worst = each;
      }
    }
    KVSIM_CHECK(worst.id >= 0, "every one of {} entries is protected", entries.size());
    out.push_back(worst.id);
    return;
  }
  std::vector<Candidate> candidates;
  for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
    if (entries.is_pinned(slot)) continue;
    const std::int32_t id = entries.id(slot);
    const double value = importance(id, newest, /*at_prefill=*/false);
    if (value < std::numeric_limits<double>::infinity()) candidates.push_back({value, id});
  }
  KVSIM_CHECK(static_cast<std::int64_t>(candidates.size()) >= excess,
              "{} of {} entries are to leave, {} may", excess, entries.size(), candidates.size());
  const auto last = candidates.begin() + static_cast<std::ptrdiff_t>(excess);
  std::nth_element(candidates.begin(), last - 1, candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.leaves_before(b); });
  const auto first_new = static_cast<std::ptrdiff_t>(out.size());
  for (auto each = candidates.begin(); each != last; ++each) out.push_back(each->id);
  std::sort(out.begin() + first_new, out.end());
}

void resolve_size(MethodResolver& resolver, const std::string& name) {
  if (!resolver.budget()) {
    resolver.set_entries(resolver.integer(name));
    return;
  }
  if (resolver.given(name)) {
    resolver.refuse(fmt::format("budget and {} are both given; they set the same number", name));
  }
  resolver.set_entries(resolver.entries_of(*resolver.budget()));
  resolver.resolve(name, resolver.entries());
}

std::int64_t held_by_appending(std::int64_t budget, std::int64_t prompt, std::int64_t tokens) {
  return std::min({budget, prompt, tokens}) + decode_steps(prompt, tokens);
}

std::int64_t Sawtooth::held(std::int64_t n) const {
  const auto next_check = [this](std::int64_t step) {
    return (step + period - 1) / period * period;
  };
  const std::int64_t first = next_check(std::max<std::int64_t>(trigger - start, 1));
  if (n < first) return start + n;
  return target + (n - first) % next_check(std::max<std::int64_t>(trigger - target, 1));
}

std::vector<EntryBudget> BudgetRule::allot_layer(std::int32_t /*layer*/,
                                                 std::span<const HeadVerdict> /*heads*/) const {
  KVSIM_CHECK(false, "a budget of scope {} does not allot layers", static_cast<int>(scope()));
  return {};
}

std::vector<std::vector<EntryBudget>> BudgetRule::allot_model(
    std::span<const std::vector<HeadVerdict>> /*layers*/) const {
  KVSIM_CHECK(false, "a budget of scope {} does not allot models", static_cast<int>(scope()));
  return {};
}

std::vector<std::unique_ptr<Reader>> ReadRule::start_heads(const SessionPlace& place,
                                                           std::size_t heads) const {
  std::vector<std::unique_ptr<Reader>> readers(heads);
  for (auto& reader : readers) reader = start(place);
  return readers;
}

ParamInfo positions_param() {
  return word_param("positions", {"original", "rerotate"},
                    "RoPE position of a cached key: its own, or its index in the cache",
                    "StreamingLLM section 3.2; H2O's streaming variant calls it rolled");
}

ParamInfo prompt_positions_param() {
  return word_param("positions", {"original", "rerotate"},
                    "RoPE position of a kept prompt key: its own, or its rank among the kept keys; "
                    "later tokens keep their own",
                    "kvpress, KeyRerotationPress");
}

ParamInfo score_exec_param() {
  return word_param("score_exec", {"eager", "eager_chunked", "fused_two_pass"},
                    "how the prompt's column sums are produced; affects costs, not results",
                    "stack dependent");
}

ScoreExec score_exec_of(const std::string& word) {
  if (word == "eager_chunked") return ScoreExec::kEagerChunked;
  if (word == "fused_two_pass") return ScoreExec::kFusedTwoPass;
  return ScoreExec::kEager;
}

}  // namespace kvsim
