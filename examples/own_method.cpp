// A user's method without changes to kvsim: a selector that keeps tokens by the norm of their
// values, and a merger that adds evicted entries to their newest neighbour. Build it against the
// libraries (examples/CMakeLists.txt) and pass a trace:
//
//     own_method traces/samples/books-treasure-512.safetensors
//
// It replays the new method next to `full`, `streaming-llm` and `h2o` and prints one line per
// method.

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "models/methods/resolve/choices.hpp"
#include "models/methods/resolve/presets.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"

namespace {

using namespace kvsim;

// --- An axis choice has two parts. The state of one stored head ---

class ValueNormSelector final : public Selector {
 public:
  explicit ValueNormSelector(std::int64_t recent) : recent_{recent} {}

  // It uses only content, so all information is available here: a trace is recorded completely.
  // Attention rows would come from scores.column_sums() or observe().
  void learn_prompt(PromptScores& scores) override {
    const HeadVectors& head = scores.heads().front();
    for (std::int64_t t = 0; t < head.tokens; ++t) {
      norms_.push_back(std::sqrt(dot(head.value(t), head.value(t))));
    }
  }
  double score(std::int32_t id) const override { return norms_[static_cast<std::size_t>(id)]; }
  double importance(std::int32_t id, std::int32_t newest, bool /*at_prefill*/) const override {
    return newest - id < recent_ ? std::numeric_limits<double>::infinity() : score(id);
  }

 private:
  std::int64_t recent_;
  std::vector<double> norms_;  // by position
};

// --- and the rule shared by all heads: parameters, size law, cost ---

class ValueNormRule final : public SelectRule {
 public:
  explicit ValueNormRule(std::int64_t recent) : recent_{recent} {}
  std::unique_ptr<Selector> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<ValueNormSelector>(recent_);
  }
  MethodNeeds needs() const override { return {}; }  // S0: requires no attention rows
  // The size law is the default: min(T, budget).
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return bytes_of(entries, Dtype::kFp32);  // one norm per entry
  }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& /*shape*/) const override {
    traffic.side_read += 4 * events.attended;  // the search for the lowest
    traffic.side_write += 4;
  }

 private:
  std::int64_t recent_;
};

std::shared_ptr<const SelectRule> make_value_norm(MethodResolver& resolver) {
  const std::int64_t entries = resolver.budget_entries(0.2);
  const std::int64_t recent = resolver.integer("recent_tokens");
  if (recent >= entries) resolver.refuse("recent_tokens leave nothing of the budget to choose");
  resolver.set_entries(entries);
  return std::make_shared<ValueNormRule>(recent);
}

// --- A merger: evicted entries are merged into the following entry ---

class NeighbourMerger final : public Merger {
 public:
  void absorb_prompt(EntryTable& entries, Selector& /*selector*/,
                     std::span<const std::int32_t> losers, std::span<const float> keys,
                     std::span<const float> values) override {
    const std::size_t d = entries.key(0).size();
    for (const std::int32_t id : losers) {
      const std::size_t at = static_cast<std::size_t>(id) * d;
      // Only tokens in the table can be merged: the evicted entry is added temporarily.
      const std::int32_t slot = entries.append(id, keys.subspan(at, d), values.subspan(at, d));
      join(entries, slot);
    }
  }
  std::int32_t absorb(EntryTable& entries, Selector& /*selector*/,
                      std::span<const std::int32_t> leaving) override {
    for (const std::int32_t id : leaving) join(entries, entries.slot_of(id));
    return static_cast<std::int32_t>(leaving.size());
  }

 private:
  /// The mean of both, weighted by the number of tokens of each.
  static void join(EntryTable& entries, std::int32_t from) {
    const std::int32_t id = entries.id(from);
    std::int32_t into = -1;
    for (std::int32_t slot = 0; slot < entries.size(); ++slot) {
      if (slot == from) continue;
      const bool after = entries.id(slot) > id;
      const bool nearer = into < 0 || entries.id(slot) < entries.id(into);
      if (after && nearer) into = slot;
    }
    if (into < 0) return entries.erase(from);
    const double w = entries.count(into);
    const double v = entries.count(from);
    std::vector<double> key;
    std::vector<double> value;
    for (std::size_t j = 0; j < entries.key(into).size(); ++j) {
      const auto mean = [&](std::span<const float> a, std::span<const float> b) {
        return (w * static_cast<double>(a[j]) + v * static_cast<double>(b[j])) / (w + v);
      };
      key.push_back(mean(entries.key(into), entries.key(from)));
      value.push_back(mean(entries.value(into), entries.value(from)));
    }
    entries.merge_into(into, {&id, 1}, key, value, w + v);
  }
};

class NeighbourRule final : public MergeRule {
 public:
  std::unique_ptr<Merger> start(const SessionPlace& /*place*/) const override {
    return std::make_unique<NeighbourMerger>();
  }
  bool merges() const override { return true; }
  double bias(std::int32_t count, double /*weight*/) const override { return std::log(count); }
  Bytes side_bytes(std::int64_t entries, const HeadShape& /*shape*/) const override {
    return bytes_of(entries, Dtype::kFp32);  // one count per entry
  }
  Compaction compaction() const override { return Compaction::kSwap; }
  std::int32_t launches() const override { return 1; }
  void add_step(StepTraffic& traffic, const StepEvents& events,
                const HeadShape& shape) const override {
    traffic.move_read += 2 * events.merged * shape.row_bytes();
    traffic.move_write += events.merged * shape.row_bytes();
  }
};

std::shared_ptr<const MergeRule> make_neighbour(MethodResolver& /*resolving*/) {
  return std::make_shared<NeighbourRule>();
}

void register_own() {
  register_choice({.axis = "select",
                   .name = "value-norm",
                   .params = {integer_param("recent_tokens", "", 16, 1, kManyEntries,
                                            "an integer >= 1", "last tokens kept", "this example")},
                   .make = &make_value_norm});
  register_choice({.axis = "merge", .name = "neighbour", .params = {}, .make = &make_neighbour});
  register_preset({.name = "own",
                   .summary = "largest values kept, what leaves joins its neighbour",
                   .paper = "",
                   .axes = {{"select", "value-norm"}, {"merge", "neighbour"}},
                   .size_law = "min(T, B)",
                   .cost_class = "S0: flash attention untouched",
                   .defaults = {},
                   .default_budget = 0.2});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: own_method TRACE\n");
    return 2;
  }
  try {
    register_own();
    const Trace trace = Trace::open(argv[1]);
    const Budget budget{.fraction = 0.2, .entries = 0};
    // Presets compose with single choices: the selector alone is "own" with another merger.
    const ReplayResult result = replay(trace,
                                       {{"full", {}, {}},
                                        {"streaming-llm", {}, budget},
                                        {"h2o", {}, budget},
                                        {"own", {}, budget},
                                        {"select=value-norm", {}, budget},
                                        {"h2o+merge=neighbour", {}, budget}},
                                       {});
    for (const ReplayMethod& m : result.methods) {
      std::printf("%-20s %8lld bytes, law %8lld, error %.4f\n", m.name.c_str(),
                  static_cast<long long>(m.bytes_held_final),
                  static_cast<long long>(m.closed_form_bytes_final.value_or(-1)), m.rel_error_mean);
    }
  } catch (const InputError& error) {
    std::fprintf(stderr, "own_method: %s\n", error.what());
    return 2;
  }
  return 0;
}
