#include "validation/e2e/check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "kernels/suite/decode_loop.hpp"
#include "models/cost/step.hpp"
#include "models/stack/stack.hpp"
#include "models/units/check.hpp"
#include "validation/e2e/graph_bytes.hpp"
#include "validation/e2e/reference_forward.hpp"

namespace kvsim {
namespace {

using kernels::LoopMethod;
using kernels::LoopSpec;
using Loop = on_sim::DecodeLoop<float>;
using State = on_sim::LayerCacheState<float>;

// Error of fp32 sums of a few hundred terms through a few layers, relative to the largest number.
constexpr double kAllowed = 2e-5;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class A, class B>
double largest_error(const A& got, const B& expected) {
  KVSIM_CHECK(std::size(got) == std::size(expected), "{} numbers instead of {}", std::size(got),
              std::size(expected));
  double error = 0;
  double size = 1e-30;
  for (std::size_t i = 0; i < std::size(got); ++i) {
    const auto right = static_cast<double>(expected[i]);
    const double off = std::abs(static_cast<double>(got[i]) - right);
    if (!(off <= error)) error = off;  // a NaN too
    size = std::max(size, std::abs(right));
  }
  return error / size;
}

/// Slots of a session's table in the order of the loop: residual slots first, then by position.
std::vector<std::int32_t> slot_order(const EntryTable& entries) {
  std::vector<std::int32_t> slots;
  for (std::int32_t slot = 0; slot < entries.size(); ++slot) slots.push_back(slot);
  std::sort(slots.begin(), slots.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair{!entries.is_pinned(a), entries.id(a)} <
           std::pair{!entries.is_pinned(b), entries.id(b)};
  });
  return slots;
}

State prompt_cache(const ReferenceForward& run, const LoopSpec& s, std::int64_t layer) {
  State state;
  for (std::int64_t row = 0; row < s.cache_rows(); ++row) {
    const CacheSession& session = run.session(layer, row);
    const EntryTable& entries = session.entries();
    std::int64_t pinned = 0;
    for (const std::int32_t slot : slot_order(entries)) {
      const auto key = entries.key(slot);
      const auto value = entries.value(slot);
      state.keys.insert(state.keys.end(), key.begin(), key.end());
      state.values.insert(state.values.end(), value.begin(), value.end());
      if (!s.scores()) continue;
      const std::int32_t id = entries.id(slot);
      state.positions.push_back(id);
      state.scores.push_back(static_cast<float>(session.selector().score(id)));
      if (!entries.is_pinned(slot)) continue;
      state.counts.push_back(entries.count(slot));
      ++pinned;
    }
    KVSIM_CHECK(pinned == s.slots, "{} residual slots after the prompt, not {}", pinned, s.slots);
  }
  return state;
}

/// Returns the loop's slot of the entry at position `id` in `row` of the layer, or -1 if there is
/// none.
std::int64_t slot_of(const LoopSpec& s, const State& state, std::int64_t row, std::int64_t entries,
                     std::int32_t id) {
  if (s.method == LoopMethod::kFull) return id;
  if (s.method == LoopMethod::kStreaming) {
    return id < s.sinks ? id : s.sinks + (id - s.sinks) % (s.budget + 1 - s.sinks);
  }
  for (std::int64_t e = 0; e < entries; ++e) {
    if (state.positions[at(row * entries + e)] == id) return e;
  }
  return -1;
}

class Checker {
 public:
  explicit Checker(const E2ePlan& plan)
      : plan_{plan}, s_{plan.loop}, loop_{device_, s_}, reference_{plan, loop_.weights()} {
    out_.allowed = kAllowed;
  }

  LoopCheck run() {
    for (std::int64_t layer = 0; layer < s_.model.n_layers; ++layer) {
      loop_.set_cache(layer, prompt_cache(reference_, s_, layer));
    }
    GraphBytes graph{plan_};
    for (std::int64_t step = 0; step < s_.steps; ++step) {
      reference_.step(loop_.tokens(step));
      loop_.step([&](std::int64_t layer) { compare_layer(step, layer); });
      note(out_.logits_error, loop_.logits(), reference_.logits(), step, "logits");
      graph.add_step(step);
      ++out_.steps;
    }
    out_.ops = graph.compare(loop_.take_ops());
    for (const CheckedOp& op : out_.ops) {
      if (!op.agrees()) {
        problem(
            fmt::format("bytes of \"{}\": {} loaded and {} stored, of its formula {} and {}, of "
                        "the graph {} and {} except for the named differences",
                        op.name, op.loaded, op.stored, op.formula_loaded, op.formula_stored,
                        op.graph_read, op.graph_written));
      }
    }
    for (const std::string& name : graph.without_kernel()) {
      problem(fmt::format("the graph's \"{}\" is no operator of the loop", name));
    }
    return std::move(out_);
  }

 private:
  void problem(std::string text) { out_.problems.push_back(std::move(text)); }

  template <class A, class B>
  void note(double& worst, const A& got, const B& expected, std::int64_t step, const char* what) {
    const double error = largest_error(got, expected);
    const bool was_right = worst <= kAllowed;
    if (!(error <= worst)) worst = error;
    if (was_right && !(error <= kAllowed)) {
      problem(fmt::format("{} at step {}: off by {:.1e}, allowed {:.1e}", what, step + 1, error,
                          kAllowed));
    }
  }

  void compare_layer(std::int64_t step, std::int64_t layer) {
    const ReferenceForward::Layer& right = reference_.layer(layer);
    note(out_.projection_error, loop_.queries(), right.q, step, "queries");
    note(out_.projection_error, loop_.fresh_keys(), right.keys, step, "keys");
    note(out_.projection_error, loop_.fresh_values(), right.values, step, "values");
    note(out_.attention_error, loop_.attended(), right.attended, step, "attention");
    const std::int64_t entries = s_.held(step) + 1;
    const State state = loop_.cache(layer, entries);
    for (std::int64_t row = 0; row < s_.cache_rows(); ++row) {
      compare_row(step, layer, row, state, entries);
    }
  }

  /// The loop's row has every entry that the replay holds after the step, and one more: the entry
  /// that was just evicted or merged.
  void compare_row(std::int64_t step, std::int64_t layer, std::int64_t row, const State& state,
                   std::int64_t entries) {
    const CacheSession& session = reference_.session(layer, row);
    const EntryTable& table = session.entries();
    const std::int64_t leaves = s_.method == LoopMethod::kFull ? 0 : 1;
    if (table.size() != entries - leaves) {
      return problem(fmt::format("the replay holds {} entries at step {}, the loop {}",
                                 table.size(), step + 1, entries - leaves));
    }
    const std::int64_t d = s_.model.head_dim;
    for (std::int32_t slot = 0; slot < table.size(); ++slot) {
      const std::int32_t id = table.id(slot);
      const std::int64_t e = slot_of(s_, state, row, entries, id);
      if (e < 0) {
        return problem(fmt::format("the entry of position {} left layer {}, row {} at step {}", id,
                                   layer, row, step));
      }
      const auto first = (row * entries + e) * d;
      note(out_.cache_error, std::span{state.keys}.subspan(at(first), at(d)), table.key(slot), step,
           "a cached key");
      note(out_.cache_error, std::span{state.values}.subspan(at(first), at(d)), table.value(slot),
           step, "a cached value");
      if (s_.scores()) compare_score(step, row, state, entries, e, session, slot);
      ++out_.entries_compared;
    }
  }

  void compare_score(std::int64_t step, std::int64_t row, const State& state, std::int64_t entries,
                     std::int64_t e, const CacheSession& session, std::int32_t slot) {
    const EntryTable& table = session.entries();
    if (e < s_.slots) {  // only its count is compared, not its score
      if (!table.is_pinned(slot) || state.counts[at(row * s_.slots + e)] != table.count(slot)) {
        problem(fmt::format("a residual slot represents {} tokens at step {}, in the replay {}",
                            state.counts[at(row * s_.slots + e)], step + 1, table.count(slot)));
      }
      return;
    }
    const std::array<float, 1> got{state.scores[at(row * entries + e)]};
    const std::array<double, 1> right{session.selector().score(table.id(slot))};
    note(out_.cache_error, got, right, step, "a score");
  }

  const E2ePlan& plan_;
  const LoopSpec& s_;
  cuda_sim::Device device_;
  Loop loop_;
  ReferenceForward reference_;
  LoopCheck out_;
};

}  // namespace

bool CheckedOp::agrees() const {
  std::int64_t more_loaded = 0;
  std::int64_t more_stored = 0;
  for (const NamedDifference& d : differences) {
    more_loaded += d.loaded;
    more_stored += d.stored;
  }
  return loaded == formula_loaded && stored == formula_stored &&
         static_cast<double>(loaded) == graph_read + static_cast<double>(more_loaded) &&
         static_cast<double>(stored) == graph_written + static_cast<double>(more_stored);
}

LoopCheck check_loop(const E2ePlan& plan) {
  KVSIM_CHECK(plan.dtype == Dtype::kFp32, "the reference is of fp32");
  return Checker{plan}.run();
}

}  // namespace kvsim
