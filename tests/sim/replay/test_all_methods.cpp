// Laws of every method of the catalogue on whole traces: a trace with every input that a method may
// need, and the shipped sample. Methods come from the catalogue, so these tests include new methods
// automatically.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/methods/composed.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "traces/safetensors.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

const fs::path kSample =
    fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";

/// A small trace with hidden states, wo, scores, decisions and, on request, a repeat.
fs::path generated(bool with_repeat) {
  const fs::path path =
      test::scratch_folder() / (with_repeat ? "all-repeat.safetensors" : "all.safetensors");
  GenerateOptions options;
  options.layers = 4;
  options.heads = 4;
  options.kv_heads = 2;
  options.head_dim = 16;
  options.prompt_tokens = with_repeat ? 96 : 160;
  options.tokens = with_repeat ? 2 * options.prompt_tokens + 1 : 224;
  options.with_hidden = true;
  options.with_output_projection = true;
  options.with_scores = true;
  options.with_decisions = true;
  options.with_repeat = with_repeat;
  options.seed = 7;
  generate_trace(options, path);
  return path;
}

/// Every method of the catalogue that can run on the trace, at `budget` if it has one; other
/// methods are listed with the reason.
std::vector<MethodSpec> able(const TraceInfo& info, const std::optional<Budget>& budget) {
  std::vector<MethodSpec> specs;
  for (const MethodInfo& method : builtin_methods()) {
    MethodSpec spec{method.name, {}, takes_budget(method.name) ? budget : std::nullopt};
    try {
      (void)resolve_for_trace(spec, info);
      specs.push_back(std::move(spec));
    } catch (const InputError& error) {
      MESSAGE(std::string{error.what()});
      CHECK(std::string{error.what()}.find(method.name) != std::string::npos);
    }
  }
  return specs;
}

ReplayOptions detailed(std::int32_t threads) {
  ReplayOptions options;
  options.threads = threads;
  options.per_step = true;
  options.per_head = true;
  options.kept_positions = true;
  options.seed = 11;
  return options;
}

/// Calls `check` with each trace.
template <class Check>
void on_traces(Check check) {
  for (const fs::path& path : {generated(false), generated(true), kSample}) {
    const Trace trace = Trace::open(path);
    INFO(trace.info().name);
    check(trace);
  }
}

void check_totals(const TraceInfo& info, const ReplayMethod& m) {
  CHECK(m.steps == info.tokens - info.prompt_tokens);
  CHECK(m.side_bytes_final <= m.bytes_held_final);
  CHECK(m.host_bytes_final >= 0);
  CHECK(m.entries_read_share > 0);
  CHECK(m.entries_read_share <= 1);
  const std::int64_t row = 2 * info.head_dim * 2;  // K and V in 16 bits
  double full_read = 0;
  for (std::int64_t t = info.prompt_tokens + 1; t <= info.tokens; ++t) {
    full_read += static_cast<double>(t * row * info.n_kv_heads * info.n_layers);
  }
  CHECK(m.bytes_full_read_total == full_read);
  CHECK(m.bytes_full_final == info.tokens * row * info.n_kv_heads * info.n_layers);
  std::int64_t entries = 0, bytes = 0;
  for (const ReplayCell& cell : m.layers) {
    entries += cell.entries_final;
    bytes += cell.bytes_final;
    CHECK(cell.cosine_mean <= 1.0);
    CHECK(cell.rel_error_mean >= 0.0);
  }
  CHECK(entries == m.entries_held_final);
  CHECK(bytes == m.bytes_held_final);
  std::int64_t by_head = 0;
  for (const ReplayCell& cell : m.heads) by_head += cell.bytes_final;
  CHECK(by_head == m.bytes_held_final);
  double read = 0, written = 0, link = 0, error = 0;
  for (const ReplayStep& step : m.series) {
    read += step.bytes_read;
    written += step.bytes_written;
    link += step.link_bytes;
    error += step.rel_error;
    REQUIRE(step.side_bytes <= step.bytes_held);
    REQUIRE(step.entries_read <= static_cast<double>(step.entries_attended));
    REQUIRE(step.entries_held >= 0);
    if (step.retained_mass) {
      REQUIRE(*step.retained_mass >= 0.0);
      REQUIRE(*step.retained_mass <= 1.0);
    }
  }
  CHECK(read == m.bytes_read_total);
  CHECK(written == m.bytes_written_total);
  CHECK(link == m.link_bytes_total);
  CHECK(error / static_cast<double>(m.steps) == doctest::Approx(m.rel_error_mean).epsilon(1e-6));
  REQUIRE(!m.series.empty());
  CHECK(m.series.back().bytes_held == m.bytes_held_final);
  CHECK(m.series.back().host_bytes == m.host_bytes_final);
  CHECK(m.series.back().side_bytes == m.side_bytes_final);
  CHECK(m.series.back().entries_held == m.entries_held_final);
  // I1: counters against a recount of the kept positions.
  std::int64_t recount = 0;
  for (const auto& layer : m.kept) {
    for (const auto& head : layer) {
      recount += static_cast<std::int64_t>(head.size());
      std::vector<bool> seen(static_cast<std::size_t>(info.tokens), false);
      for (const auto& entry : head) {
        REQUIRE(!entry.empty());
        for (const std::int32_t id : entry) {
          REQUIRE(id >= 0);
          REQUIRE(id < info.tokens);
          REQUIRE_FALSE(seen[static_cast<std::size_t>(id)]);  // no token is held twice
          seen[static_cast<std::size_t>(id)] = true;
        }
      }
    }
  }
  CHECK(recount == m.entries_held_final);
}

TEST_CASE("I1 I9: every method's counters are consistent and its size law is its count") {
  on_traces([](const Trace& trace) {
    const TraceInfo& info = trace.info();
    for (const double budget : {0.2, 0.6}) {
      const auto specs = able(info, Budget{budget, 0});
      CHECK(specs.size() > 3);
      const auto result = replay(trace, specs, detailed(1));
      REQUIRE(result.methods.size() == specs.size());
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const ReplayMethod& m = result.methods[i];
        INFO(m.name, " at ", budget);
        check_totals(info, m);
        if (m.closed_form_bytes_final) CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
        const auto method = resolve_for_trace(specs[i], info);
        const ComposedMethod& composed = as_composed(*method);
        const std::int64_t heads = method->stored_heads(
            {.n_heads = info.n_heads, .n_kv_heads = info.n_kv_heads, .head_dim = info.head_dim});
        for (const ReplayStep& step : m.series) {
          std::int64_t held = 0, attended = 0;
          bool known = true;
          for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
            const auto one = method->entries_held(layer, info.prompt_tokens, step.tokens);
            const auto at = method->entries_attended(layer, info.prompt_tokens, step.tokens);
            known = known && one && at;
            held += one.value_or(0) * heads;
            attended += at.value_or(0) * heads;
          }
          if (!known) break;
          REQUIRE(step.entries_held == held);
          REQUIRE(step.entries_attended == attended);
        }
        // The kept entries are within a budget of bytes; readers hold all entries and report this.
        REQUIRE(m.budget_reached.has_value());
        if (composed.parts().read == nullptr && m.budget && m.closed_form_bytes_final) {
          CHECK(*m.budget_reached <= *m.budget * 1.1 + 0.02);
        }
      }
    }
  });
}

TEST_CASE("I2: a budget of all tokens makes every method without rounding exact") {
  on_traces([](const Trace& trace) {
    const TraceInfo& info = trace.info();
    auto specs = able(info, Budget{0, 2 * info.tokens});
    for (MethodSpec& spec : specs) {
      if (spec.name == "rocketkv") spec.params["topk"] = info.tokens;  // its step limit
    }
    const auto result = replay(trace, specs, detailed(1));
    std::int64_t exact = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const ReplayMethod& m = result.methods[i];
      const auto method = resolve_for_trace(specs[i], info);
      const Composition& parts = as_composed(*method).parts();
      // Cheaper formats, shared layers and selections without a budget change results even for
      // equal kept sets.
      const bool lossy = parts.store->rounds() || parts.share || !m.budget;
      if (lossy && m.name != "full") continue;
      // These distribute a total by a softmax over layers, regardless of a head's budget.
      if (m.name.starts_with("pyramid") && m.name != "pyramidkv") continue;
      INFO(m.name);
      ++exact;
      CHECK(m.rel_error_mean < 1e-5);
      CHECK(m.entries_held_final == info.tokens * info.n_layers *
                                        method->stored_heads({.n_heads = info.n_heads,
                                                              .n_kv_heads = info.n_kv_heads,
                                                              .head_dim = info.head_dim}));
    }
    CHECK(exact > 3);
  });
}

TEST_CASE("no method retains more than the best choice of equal size at each step") {
  on_traces([](const Trace& trace) {
    for (const double budget : {0.1, 0.5}) {
      const auto specs = able(trace.info(), Budget{budget, 0});
      const auto result = replay(trace, specs, detailed(2));
      for (const ReplayMethod& m : result.methods) {
        INFO(m.name, " at ", budget);
        REQUIRE(m.best_mass_mean.has_value() == m.retained_mass_mean.has_value());
        if (!m.best_mass_mean) continue;
        CHECK(*m.best_mass_mean <= 1.0);
        CHECK(*m.retained_mass_mean <= *m.best_mass_mean + 1e-6);
        for (const ReplayCell& head : m.heads) {
          CHECK(*head.retained_mass_mean <= *head.best_mass_mean + 1e-6);
        }
        // The oracle is the best choice by definition; whole caches have no choice.
        if (m.name == "oracle-step" || m.name == "full") {
          CHECK(*m.retained_mass_mean == doctest::Approx(*m.best_mass_mean).epsilon(1e-5));
        }
      }
    }
  });
}

/// The trace with its two KV heads and their data exchanged: every tensor row except the hidden
/// states has one half per head.
fs::path with_heads_swapped(const fs::path& path) {
  const fs::path swapped = test::scratch_folder() / "all-swapped.safetensors";
  const Safetensors file = Safetensors::open(path);
  std::vector<TensorPlan> plan;
  for (const auto& [name, entry] : file.tensors()) plan.push_back({name, entry.type, entry.shape});
  SafetensorsWriter writer{swapped, plan, file.metadata()};
  for (const TensorPlan& tensor : plan) {
    const TensorEntry& entry = *file.find(tensor.name);
    if (entry.type == TensorType::kI32) {  // per token, not per head
      std::vector<std::int32_t> ids(static_cast<std::size_t>(entry.elements()));
      const auto bytes = file.bytes(entry);
      std::memcpy(ids.data(), bytes.data(), bytes.size());
      writer.write(std::span<const std::int32_t>{ids});
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(entry.elements()));
    file.read_floats(tensor.name, 0, values);
    if (!tensor.name.ends_with("hidden")) {
      const auto width = static_cast<std::ptrdiff_t>(entry.elements() / entry.shape.front());
      for (auto row = values.begin(); row != values.end(); row += width) {
        std::swap_ranges(row, row + width / 2, row + width / 2);
      }
    }
    writer.write(std::span<const float>{values});
  }
  writer.finish();
  return swapped;
}

TEST_CASE("I8: exchanging KV heads exchanges their results and nothing else") {
  // Draws are keyed by layer, head and step, so exchanged heads draw other numbers. Joint decisions
  // for several heads (means over heads, budgets shared among them) are no exception: with two
  // heads, even their sums are equal to the last digit.
  const std::map<std::string, std::string> by_place{{"random", "scores are drawn"},
                                                    {"keyformer", "Gumbel noise is drawn"},
                                                    {"cam", "merges are drawn (Bernoulli)"},
                                                    {"less", "feature maps begin at random"}};
  const fs::path path = generated(false);
  const Trace trace = Trace::open(path);
  const Trace swapped = Trace::open(with_heads_swapped(path));
  std::vector<MethodSpec> specs = able(trace.info(), Budget{0.3, 0});
  std::erase_if(specs, [&](const MethodSpec& spec) { return by_place.contains(spec.name); });
  CHECK(specs.size() > 30);
  const auto first = replay(trace, specs, detailed(2));
  const auto second = replay(swapped, specs, detailed(2));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ReplayMethod& m = first.methods[i];
    const ReplayMethod& other = second.methods[i];
    INFO(m.name);
    CHECK(m.entries_held_final == other.entries_held_final);
    CHECK(m.bytes_held_final == other.bytes_held_final);
    CHECK(m.rel_error_mean == doctest::Approx(other.rel_error_mean).epsilon(1e-5));
    REQUIRE(m.heads.size() == other.heads.size());
    for (std::size_t h = 0; h < m.heads.size(); ++h) {
      const ReplayCell& here = m.heads[h];
      const ReplayCell& there = other.heads[h ^ 1];
      REQUIRE(here.layer == there.layer);
      INFO("layer ", here.layer, " head ", here.head);
      CHECK(here.entries_final == there.entries_final);
      CHECK(here.rel_error_mean == doctest::Approx(there.rel_error_mean).epsilon(1e-5));
      const auto layer = static_cast<std::size_t>(here.layer);
      CHECK(m.kept[layer][h % 2] == other.kept[layer][(h % 2) ^ 1]);
    }
  }
}

TEST_CASE("I10: threads and a second run change no digit of any method") {
  const Trace trace = Trace::open(generated(false));
  const auto specs = able(trace.info(), Budget{0.25, 0});
  const auto one = replay(trace, specs, detailed(1));
  const auto three = replay(trace, specs, detailed(3));
  const auto again = replay(trace, specs, detailed(1));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    INFO(specs[i].name);
    for (const ReplayMethod* other : {&three.methods[i], &again.methods[i]}) {
      const ReplayMethod& m = one.methods[i];
      CHECK(m.kept == other->kept);
      CHECK(m.counts == other->counts);
      CHECK(m.rel_error_mean == other->rel_error_mean);
      CHECK(m.rel_error_p99 == other->rel_error_p99);
      CHECK(m.cosine_mean == other->cosine_mean);
      CHECK(m.retained_mass_mean == other->retained_mass_mean);
      CHECK(m.bytes_read_total == other->bytes_read_total);
      CHECK(m.bytes_written_total == other->bytes_written_total);
      CHECK(m.link_bytes_total == other->link_bytes_total);
      CHECK(m.bytes_held_final == other->bytes_held_final);
      for (std::size_t s = 0; s < m.series.size(); ++s) {
        REQUIRE(m.series[s].rel_error == other->series[s].rel_error);
        REQUIRE(m.series[s].bytes_held == other->series[s].bytes_held);
      }
    }
  }
  // Methods that run simultaneously also have no effect, except on those that draw only by seed.
  for (const MethodSpec& spec : specs) {
    INFO(spec.name);
    const auto alone = replay(trace, {spec}, detailed(2));
    const auto found = std::find_if(one.methods.begin(), one.methods.end(),
                                    [&](const ReplayMethod& m) { return m.name == spec.name; });
    CHECK(alone.methods.front().rel_error_mean == found->rel_error_mean);
    CHECK(alone.methods.front().kept == found->kept);
  }
}

/// The trace with all its tokens in the prompt: no decode step remains.
fs::path all_prompt(const fs::path& path, std::int64_t tokens) {
  const fs::path out = test::scratch_folder() / "all-prompt.safetensors";
  const Safetensors file = Safetensors::open(path);
  std::vector<TensorPlan> plan;
  for (const auto& [name, entry] : file.tensors()) plan.push_back({name, entry.type, entry.shape});
  auto metadata = file.metadata();
  metadata["prompt_len"] = fmt::format("{}", tokens);
  SafetensorsWriter writer{out, plan, metadata};
  for (const TensorPlan& tensor : plan) {
    const TensorEntry& entry = *file.find(tensor.name);
    if (entry.type == TensorType::kI32) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(entry.elements()));
      std::memcpy(ids.data(), file.bytes(entry).data(), file.bytes(entry).size());
      writer.write(std::span<const std::int32_t>{ids});
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(entry.elements()));
    file.read_floats(tensor.name, 0, values);
    writer.write(std::span<const float>{values});
  }
  writer.finish();
  return out;
}

TEST_CASE("MHA, GQA and MQA at odd sizes with and without decode steps: laws are the counts") {
  struct Shape {
    std::int32_t heads, kv_heads;
  };
  for (const Shape shape : {Shape{3, 3}, Shape{6, 2}, Shape{4, 1}}) {
    for (const std::int64_t prompt : {1, 31, 257}) {
      for (const std::int64_t steps : {0, 31}) {
        if (prompt + steps < 2) continue;  // no trace is this short
        GenerateOptions options;
        options.layers = 3;
        options.heads = shape.heads;
        options.kv_heads = shape.kv_heads;
        options.head_dim = 8;
        options.prompt_tokens = steps > 0 ? prompt : prompt - 1;
        options.tokens = prompt + steps;
        options.with_hidden = true;
        options.with_output_projection = true;
        options.with_scores = true;
        options.with_decisions = true;
        const fs::path path = test::scratch_folder() / "odd.safetensors";
        generate_trace(options, path);
        const Trace trace = Trace::open(steps > 0 ? path : all_prompt(path, prompt));
        const auto specs = able(trace.info(), Budget{0, 30});
        CHECK(specs.size() > 20);
        for (const ReplayMethod& m : replay(trace, specs, detailed(1)).methods) {
          INFO(m.name, " heads ", shape.heads, "/", shape.kv_heads, " prompt ", prompt, " steps ",
               steps);
          if (steps > 0) {
            check_totals(trace.info(), m);
          } else {
            CHECK(m.steps == 0);
            CHECK(m.series.empty());
            CHECK(m.bytes_read_total == 0);
            CHECK(m.bytes_written_total == 0);
          }
          if (m.closed_form_bytes_final) CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
          std::int64_t recount = 0;
          for (const auto& layer : m.kept) {
            for (const auto& head : layer) recount += std::ssize(head);
          }
          CHECK(recount == m.entries_held_final);
        }
      }
    }
  }
}

TEST_CASE("few decode steps, and prompts smaller than any budget") {
  for (const std::int64_t prompt : {1, 2, 31}) {
    GenerateOptions options;
    options.layers = 2;
    options.heads = 2;
    options.kv_heads = 1;
    options.head_dim = 8;
    options.prompt_tokens = prompt;
    options.tokens = prompt + 3;
    options.with_hidden = true;
    options.with_output_projection = true;
    options.with_scores = true;
    options.with_decisions = true;
    const fs::path path = test::scratch_folder() / "tiny.safetensors";
    generate_trace(options, path);
    const Trace trace = Trace::open(path);
    const auto specs = able(trace.info(), Budget{0, 64});
    const auto result = replay(trace, specs, detailed(1));
    for (const ReplayMethod& m : result.methods) {
      INFO(m.name, " prompt ", prompt);
      check_totals(trace.info(), m);
    }
  }
}

}  // namespace
}  // namespace kvsim
