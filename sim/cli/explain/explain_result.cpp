#include "sim/cli/explain/explain_result.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/cli/explain/explain_parts.hpp"
#include "sim/serve/account/service_metrics.hpp"

namespace kvsim {
namespace {

constexpr double kMilli = 1e3;

/// The metric `key` of a static batch with its interval; terms and total are added later.
Explanation figure(const Field& point, std::string_view key, std::string_view basis = {}) {
  Explanation out{.key = std::string{key},
                  .point = point.at("label").string(),
                  .unit = std::string{find_metric(static_metrics(), key)->info.unit},
                  .value = maybe_number(point, key),
                  .low = maybe_number(point, fmt::format("{}_low", key)),
                  .high = maybe_number(point, fmt::format("{}_high", key))};
  if (const auto bases = point.find("interval_basis"); bases && !basis.empty()) {
    out.basis = text_or_none(*bases, basis);
  }
  return out;
}

Explanation peak(const Field& point) {
  Explanation out = figure(point, "peak_hbm_bytes", "memory");
  const Field terms = point.at("peak_terms");
  for (const Field& term : terms.items()) {
    out.terms.push_back(
        {.what = fmt::format("{}: {}", term.at("owner").string(), term.at("what").string()),
         .value = explained_number(term.at("bytes")),
         .formula = text_or_none(term, "formula"),
         .source = text_or_none(term, "source")});
  }
  resolve(out, terms, "peak_hbm_bytes", "B", explained_number(point.at("peak_hbm_bytes")));
  out.notes.push_back(fmt::format("the peak is in {}", point.at("peak_phase").string()));
  return out;
}

/// Explains a phase's peak; the document has only the terms of the higher peak.
Explanation phase_peak(const Field& point, std::string_view key) {
  const std::string phase{key.substr(0, key.find('_'))};
  if (point.at("peak_phase").string() != phase) {
    const auto value = maybe_number(point, key);
    fail_without(
        point, fmt::format("list of the terms of {}", key),
        fmt::format("it is {} B, and the document contains the terms of the run's peak, which "
                    "is in {} (peak_hbm_bytes)",
                    value ? fmt::format("{:.0f}", *value) : std::string{"no figure,"},
                    point.at("peak_phase").string()));
  }
  Explanation out = peak(point);
  out.key = key;
  return out;
}

Explanation cache(const Field& point) {
  Explanation out = figure(point, "kv_bytes", "memory");
  const Field layers = point.at("kv_bytes_per_layer");
  const std::vector<Field> items = layers.items();
  const std::string source = fmt::format("size law: {}", point.at("size_law").string());
  for (std::size_t first = 0; first < items.size();) {
    std::size_t end = first + 1;
    while (end < items.size() && items[end].raw() == items[first].raw()) ++end;
    const double each = explained_number(items[first]);
    const auto n = static_cast<double>(end - first);
    out.terms.push_back({.what = end - first == 1 ? fmt::format("layer {}", first)
                                                  : fmt::format("layers {} to {}", first, end - 1),
                         .value = n * each,
                         .formula = fmt::format("{} x {:.0f} B", end - first, each),
                         .source = source});
    first = end;
  }
  resolve(out, layers, "kv_bytes", "B", explained_number(point.at("kv_bytes")));
  return out;
}

/// Entries of time_terms. Throws InputError with a hint if there are none.
std::vector<Field> time_steps(const Field& point) {
  const Field steps = point.at("time_terms");
  std::vector<Field> items = steps.items();
  if (!items.empty()) return items;
  if (!point.has("prefill_s")) {
    const auto oom = point.find("oom");
    fail_without(point, "time",
                 oom ? fmt::format("memory runs out in {}", oom->at("phase").string())
                     : std::string{"no prefill completed"});
  }
  steps.fail(
      "no time terms: results with more than 1,000 points contain none; run the scenario again "
      "with only this point's keys (kvsim run SCENARIO --set /KEY=VALUE …)");
}

Explanation decode_step(const Field& point, std::string_view key, bool first) {
  const std::vector<Field> steps = time_steps(point);
  std::optional<Field> found;
  for (const Field& one : steps) {
    if (explained_number(one.at("step")) > 0 && (!found || !first)) found = one;
  }
  if (!found) fail_without(point, key, "no decode step was run");
  return explain_step(point, *found, key);
}

Explanation prefill(const Field& point) {
  return explain_step(point, time_steps(point).front(), "prefill_s");
}

/// Adds the terms of decode and, if `prefills`, of prefill.
void add_times(Explanation& out, const Field& point, bool prefills) {
  for (const char* key : {"prefill_s", "decode_s"}) {
    if (!prefills && std::string_view{key} == "prefill_s") continue;
    const double steps = explained_number(point.at("output_tokens"));
    if (steps == 0 && std::string_view{key} == "decode_s") continue;
    const Explanation part = figure(point, key);
    ExplainedTerm term{.what = key, .value = *part.value, .low = part.low, .high = part.high};
    if (std::string_view{key} == "decode_s") {
      term.what = "decode";
      term.formula =
          fmt::format("{} steps x {:.6g} ms on average", steps, *part.value / steps * kMilli);
      term.source = "kvsim explain RESULT step_s: the terms of the last step";
    } else {
      term.what = "prefill";
      term.source = "kvsim explain RESULT prefill_s: its terms";
    }
    out.terms.push_back(std::move(term));
  }
}

Explanation run_time(const Field& point, std::string_view key, std::string_view of) {
  Explanation out = figure(point, key, "time");
  if (!out.value) {
    fail_without(
        point, key,
        point.has("oom") ? "the point runs out of memory" : "the point generates no tokens");
  }
  if (explained_number(point.at("output_tokens")) == 0 && key != "latency_s") {
    fail_without(point, key, "no tokens are generated");
  }
  add_times(out, point, of == "latency_s");
  if (out.unit == "tok/s") {
    out.formula = fmt::format("batch {} x {} tokens / {}", explained_number(point.at("batch")),
                              explained_number(point.at("output_tokens")), of);
  }
  resolve(out, point, of, "s", explained_number(point.at(of)));
  return out;
}

Explanation reserved(const Field& point) {
  Explanation out = figure(point, "reserved_hbm_bytes");
  const auto allocator = point.find("allocator");
  if (!out.value || !allocator) {
    fail_without(point, "reserved_hbm_bytes",
                 "the allocator was not simulated; \"memory\": {\"allocator\": \"simulate\"} in "
                 "the scenario simulates it");
  }
  const double segments = explained_number(allocator->at("reserved_peak_bytes"));
  double held = 0;
  for (const auto& [owner, bytes] : allocator->at("owners").members()) {
    out.terms.push_back({.what = fmt::format("{}: allocated", owner),
                         .value = explained_number(bytes),
                         .source = "simulated allocator, when most was reserved"});
    held += out.terms.back().value;
  }
  out.terms.push_back(
      {.what = "cached and split off: reserved, not allocated",
       .value = segments - held,
       .formula = fmt::format("{:.0f} B of segments - {:.0f} B allocated", segments, held),
       .source = "simulated allocator"});
  out.terms.push_back(
      {.what = "CUDA context", .value = *out.value - segments, .source = "stack profile: context"});
  resolve(out, *allocator, "reserved_hbm_bytes", "B", *out.value);
  return out;
}

/// Explains a paged engine's pool: the memory that remains after other terms.
Explanation pool(const Field& point) {
  const auto start = point.find("startup");
  if (!start) fail_without(point, "kv_cache_bytes", "the stack has no paged cache");
  Explanation out{.key = "kv_cache_bytes",
                  .point = point.at("label").string(),
                  .unit = "B",
                  .value = explained_number(start->at("kv_cache_bytes"))};
  const auto add = [&](const char* what, double bytes, std::string_view keys) {
    if (bytes == 0) return;
    out.terms.push_back({.what = what, .value = bytes, .source = fmt::format("startup: {}", keys)});
  };
  const auto bytes_of = [&](const char* key) { return explained_number(start->at(key)); };
  const auto take = [&](const char* what, const char* key) { add(what, -bytes_of(key), key); };
  // In results of earlier versions the fraction applies to all memory.
  const auto found = start->find("fraction_of");
  const std::string of = found ? found->string() : "all";
  const auto counts = start->find("counts_graphs");
  const bool counts_graphs = counts ? counts->boolean() : of == "free";
  double free = 0;
  const auto leave_out = [&] {
    const double kept = free > 0 ? std::floor(bytes_of("memory_fraction") * free) : free;
    add("left out by the memory fraction", kept - free, "memory_fraction, fraction_of");
  };
  if (of == "all") {
    add("memory the engine may use", bytes_of("usable_bytes"), "usable_bytes");
    take("weights", "weights_bytes");
    take("context, libraries, collectives", "non_torch_bytes");
    take("peak of the profiling run", "activation_bytes");
    if (counts_graphs) take("CUDA graphs", "graphs_bytes");
  } else {
    add("memory of the GPU", bytes_of("total_bytes"), "total_bytes");
    take("context, libraries, collectives", "non_torch_bytes");
    free = bytes_of("total_bytes") - bytes_of("non_torch_bytes");
    if (of == "before_weights") leave_out();
    take("weights", "weights_bytes");
    free -= bytes_of("weights_bytes");
    if (of == "free") {
      take("peak of the profiling run", "activation_bytes");
      free -= bytes_of("activation_bytes");
      if (counts_graphs) {
        take("CUDA graphs", "graphs_bytes");
        free -= bytes_of("graphs_bytes");
      }
    }
    if (of != "before_weights") leave_out();
  }
  add("missing: it does not start", bytes_of("missing_bytes"), "missing_bytes");
  if (start->find("draft_cache_bytes")) take("cache of the draft", "draft_cache_bytes");
  resolve(out, *start, "kv_cache_bytes", "B", *out.value);
  // Only services have an interval of the pool.
  out.low = maybe_number(point, "kv_pool_bytes_low");
  out.high = maybe_number(point, "kv_pool_bytes_high");
  out.basis = text_or_none(point, "pool_interval_basis");
  return out;
}

/// Explains the tokens of the pool from its blocks after the engine's start.
Explanation capacity(const Field& point) {
  Explanation out = pool(point);
  out.key = "kv_capacity_tokens";
  out.unit = "tokens";
  const Field start = point.at("startup");
  out.value = explained_number(start.at("tokens"));
  if (const auto tokens = maybe_number(point, "kv_capacity_tokens")) out.value = tokens;
  out.low = maybe_number(point, "kv_capacity_tokens_low");
  out.high = maybe_number(point, "kv_capacity_tokens_high");
  out.formula = fmt::format("{:.0f} blocks in kv_cache_bytes, in tokens of the full cache",
                            explained_number(start.at("blocks")));
  if (const auto pools = start.find("pools")) {
    for (const Field& pool : pools->items()) {
      const bool tokens = pool.has("tokens");
      out.notes.push_back(fmt::format(
          "pool of {:.0f} {} layers: {:.0f} {}, {:.0f} of them for a request of {:.0f} tokens",
          explained_number(pool.at("layers")), pool.at("kind").string(),
          explained_number(pool.at(tokens ? "tokens" : "slots")), tokens ? "tokens" : "slots",
          explained_number(pool.at("request")), explained_number(start.at("max_model_len"))));
    }
  }
  const auto groups = start.find("groups");
  if (!groups) return out;
  out.formula = fmt::format(
      "{:.0f} blocks of {:.0f} B in kv_cache_bytes, over the {:.0f} that a request of {:.0f} "
      "tokens needs, times its tokens",
      explained_number(start.at("blocks")), explained_number(start.at("block_bytes")),
      explained_number(start.at("request_blocks")), explained_number(start.at("max_model_len")));
  for (const Field& group : groups->items()) {
    const double empty = explained_number(group.at("padding"));
    out.notes.push_back(fmt::format(
        "group of {:.0f} {} layers{}: blocks of {:.0f} tokens, {:.0f} of them per request",
        explained_number(group.at("layers")), group.at("kind").string(),
        empty > 0 ? fmt::format(" and {:.0f} empty", empty) : "",
        explained_number(group.at("block_tokens")), explained_number(group.at("request_blocks"))));
  }
  return out;
}

/// Explains the peak of both kinds; a service's peak is available only by owner.
Explanation any_peak(const Field& point) {
  if (!point.has("scheduler_as_run")) return peak(point);
  Explanation out = figure(point, "peak_hbm_bytes");
  const Field owners = point.at("peak_owners");
  for (const auto& [owner, bytes] : owners.members()) {
    out.terms.push_back({.what = owner, .value = explained_number(bytes), .source = "peak_owners"});
  }
  resolve(out, owners, "peak_hbm_bytes", "B", *out.value);
  out.low = maybe_number(point, "peak_hbm_bytes_low");
  out.high = maybe_number(point, "peak_hbm_bytes_high");
  out.basis = text_or_none(point, "peak_interval_basis");
  return out;
}

ResultKind kind_of(const Field& result) {
  const std::string schema = result.at("schema").string();
  if (schema == "kvsim.plan/1") return ResultKind::kPlan;
  if (schema == "kvsim.replay/1") return ResultKind::kReplay;
  if (result.has("kind") && result.at("kind").raw() == "serve") return ResultKind::kServe;
  return ResultKind::kStatic;
}

Explanation running_out(const Field& point) {
  Explanation out{.key = "oom",
                  .point = point.at("label").string(),
                  .unit = "tokens",
                  .low = maybe_number(point, "oom_tokens_low"),
                  .high = maybe_number(point, "oom_tokens_high")};
  if (const auto bases = point.find("interval_basis")) out.basis = text_or_none(*bases, "memory");
  const double usable = explained_number(point.at("usable_hbm_bytes"));
  const auto oom = point.find("oom");
  if (!oom) {
    const double peak = explained_number(point.at("peak_hbm_bytes"));
    out.notes.push_back(out.low ? "it fits, but may run out of memory: see the interval"
                                : "it fits");
    out.terms = {{.what = "peak_hbm_bytes",
                  .value = peak,
                  .source = "kvsim explain RESULT "
                            "peak_hbm_bytes"},
                 {.what = "free at the peak", .value = usable - peak}};
    resolve(out, point, "usable_hbm_bytes", "B", usable);
    return out;
  }
  out.value = explained_number(oom->at("tokens"));
  out.notes.push_back(fmt::format("in {}, step {}: {:.0f} B for {}, {:.0f} B free",
                                  oom->at("phase").string(), explained_number(oom->at("step")),
                                  explained_number(oom->at("requested")), oom->at("what").string(),
                                  explained_number(oom->at("free"))));
  double held = 0;
  for (const auto& [owner, bytes] : oom->at("owners").members()) {
    out.terms.push_back({.what = owner, .value = explained_number(bytes), .source = "oom: owners"});
    held += out.terms.back().value;
  }
  if (point.has("startup")) {
    // Free bytes of this OOM are part of the reserved pool.
    resolve(out, *oom, "bytes held", "B", held);
    return out;
  }
  out.terms.push_back(
      {.what = "free", .value = explained_number(oom->at("free")), .source = "oom: free"});
  resolve(out, *oom, "usable_hbm_bytes", "B", usable);
  return out;
}

/// The largest batch or the fewest GPUs of a run. It is found by search, so it has no terms.
Explanation fit_figure(const Field& point, std::string_view key) {
  Explanation out = figure(point, key, "memory");
  if (!out.value) {
    fail_without(point, key, "the search found none, or the run has too many points for a search");
  }
  out.notes.emplace_back(
      "found by a search over runs that fit: kvsim explain RESULT peak_hbm_bytes has the memory of "
      "this run");
  return out;
}
/// Whether `key` is a figure of both runs and plans.
bool is_fit_key(std::string_view key) { return key == "largest_batch" || key == "fewest_gpus"; }

/// A figure with terms, and the kinds of results that have it.
struct Entry {
  enum class Of : std::uint8_t { kBatches, kServices, kBoth };
  std::string_view key;
  Of of;
  Explanation (*explain)(const Field& point, std::string_view key);
};

/// Adapts an explanation of a single figure, which needs no key.
template <Explanation (*Explain)(const Field&)>
Explanation only(const Field& point, std::string_view /*key*/) {
  return Explain(point);
}

using enum Entry::Of;
constexpr auto kEntries = std::to_array<Entry>({
    {"peak_hbm_bytes", kBoth, only<any_peak>},
    {"prefill_peak_bytes", kBatches, phase_peak},
    {"decode_peak_bytes", kBatches, phase_peak},
    {"reserved_hbm_bytes", kBoth, only<reserved>},
    {"kv_bytes", kBatches, only<cache>},
    {"kv_cache_bytes", kBoth, only<pool>},
    {"kv_capacity_tokens", kServices, only<capacity>},
    {"iteration_s", kServices, only<explain_iteration>},
    {"bound", kServices, only<explain_bound>},
    {"queue_s", kServices, explain_latency},
    {"ttft_s", kServices, explain_latency},
    {"tpot_s", kServices, explain_latency},
    {"itl_s", kServices, explain_latency},
    {"e2e_s", kServices, explain_latency},
    {"output_tok_s", kServices, explain_rate},
    {"total_tok_s", kServices, explain_rate},
    {"request_s", kServices, explain_rate},
    {"goodput", kServices, only<explain_goodput>},
    {"mfu", kServices, explain_use},
    {"mbu", kServices, explain_use},
    {"prefill_s", kBatches, only<prefill>},
    {"step_s", kBatches, [](const Field& p, auto key) { return decode_step(p, key, false); }},
    {"first_step_s", kBatches, [](const Field& p, auto key) { return decode_step(p, key, true); }},
    {"decode_s", kBatches, [](const Field& p, auto key) { return run_time(p, key, "decode_s"); }},
    {"latency_s", kBatches, [](const Field& p, auto key) { return run_time(p, key, "latency_s"); }},
    {"decode_tok_s", kBatches,
     [](const Field& p, auto key) { return run_time(p, key, "decode_s"); }},
    {"throughput_tok_s", kBatches,
     [](const Field& p, auto key) { return run_time(p, key, "latency_s"); }},
    {"largest_batch", kBatches, fit_figure},
    {"fewest_gpus", kBatches, fit_figure},
    {"oom", kBatches, only<running_out>},
});

/// Throws InputError if the result's kind does not have the figure.
void check_kind(const Field& result, const Entry& entry) {
  const bool serves = kind_of(result) == ResultKind::kServe;
  if (serves && entry.of == kBatches) {
    std::vector<std::string_view> keys;
    for (const Entry& one : kEntries) {
      if (one.of != kBatches) keys.push_back(one.key);
    }
    throw InputError{fmt::format("{}: a service explains {}, not {}", result.file(),
                                 fmt::join(keys, ", "), entry.key)};
  }
  if (!serves && entry.of == kServices) {
    throw InputError{fmt::format("{}: {} needs \"kind\": \"serve\"", result.file(), entry.key)};
  }
}

/// Explains a metric without terms: its value (the mean of a distribution), interval and meaning.
Explanation described(const Field& point, const MetricInfo& info) {
  const auto number = [&](std::string_view end) {
    const std::string key = fmt::format("{}{}", info.key, end);
    if (info.kind != MetricKind::kLatency) return maybe_number(point, key);
    const auto times = point.find(key);
    return times ? maybe_number(*times, "mean") : std::nullopt;
  };
  Explanation out{.key = std::string{info.key},
                  .point = point.at("label").string(),
                  .unit = explained_unit(info),
                  .value = number(""),
                  .low = number("_low"),
                  .high = number("_high")};
  if (info.varies_with_times) out.basis = service_basis(point);
  out.notes.emplace_back(info.help);
  return out;
}

}  // namespace

const MetricInfo* metric_without_terms(std::string_view key, ResultKind kind) {
  const bool has_terms = std::any_of(kEntries.begin(), kEntries.end(),
                                     [&](const Entry& entry) { return entry.key == key; });
  if (has_terms || (kind != ResultKind::kServe && kind != ResultKind::kStatic)) return nullptr;
  const MetricInfo* info = find_info(
      kind == ResultKind::kServe ? infos_of(service_metrics()) : infos_of(static_metrics()), key);
  return info != nullptr && info->kind != MetricKind::kText ? info : nullptr;
}

std::vector<std::string> explained_keys() {
  std::vector<std::string> keys;
  for (const Entry& entry : kEntries) keys.emplace_back(entry.key);
  for (const std::string_view key : replay_keys()) keys.emplace_back(key);
  for (const std::string_view key : plan_keys()) {
    if (!is_fit_key(key)) keys.emplace_back(key);  // keys of runs are already present
  }
  return keys;
}

Explanation explain_result(const Field& result, const ExplainRequest& requested) {
  const Field schema = result.at("schema");
  const bool replay_alone = schema.raw() == "kvsim.replay/1";
  const bool plan = schema.raw() == "kvsim.plan/1";
  if (schema.raw() != "kvsim.run/1" && !replay_alone && !plan) {
    schema.expected(
        "\"kvsim.run/1\", \"kvsim.replay/1\" or \"kvsim.plan/1\", the result of kvsim run, replay "
        "or plan");
  }
  const auto known = explained_keys();
  const ResultKind kind = kind_of(result);
  ExplainRequest request = requested;
  request.key = explained_key(requested.key, kind, known);
  const MetricInfo* plain = metric_without_terms(request.key, kind);
  if (plain == nullptr && std::find(known.begin(), known.end(), request.key) == known.end()) {
    throw InputError{unknown_name("figure", request.key, known)};
  }
  const bool of_both = is_fit_key(request.key) && kind == ResultKind::kStatic;
  if (!of_both && plan != is_plan_key(request.key)) {
    throw InputError{
        plan ? fmt::format("{}: a plan explains {}, not {}", result.file(),
                           fmt::join(plan_keys(), ", "), request.key)
             : fmt::format("{}: {} is a question for kvsim plan", result.file(), request.key)};
  }
  if (plan && (request.layer || request.head)) {
    throw InputError{fmt::format("--layer and --head apply to \"kept\", not to {}", request.key)};
  }
  if (plan) return explain_plan(result, request);
  if (is_replay_key(request.key)) {
    const auto replay = replay_alone ? std::optional{result} : result.find("replay");
    if (!replay) {
      result.fail(fmt::format(
          "not a replay: {} is a figure of a replayed method (kvsim replay -o DIR)", request.key));
    }
    return explain_replay(*replay, request);
  }
  if (request.layer || request.head) {
    throw InputError{fmt::format("--layer and --head apply to \"kept\", not to {}", request.key)};
  }
  if (replay_alone) {
    throw InputError{fmt::format("{}: a replay explains {}, not {}", result.file(),
                                 fmt::join(replay_keys(), ", "), request.key)};
  }
  const auto* const found = std::find_if(kEntries.begin(), kEntries.end(), [&](const Entry& entry) {
    return entry.key == request.key;
  });
  if (found != kEntries.end()) check_kind(result, *found);
  const Field points = result.at("points");
  if (points.items().empty()) {
    points.fail(fmt::format("a result without points: a replay explains {}",
                            fmt::join(replay_keys(), ", ")));
  }
  std::vector<std::string> labels;
  for (const Field& point : points.items()) labels.push_back(point.at("label").string());
  const Field point = points.items()[which_of(points, "point", labels, request.which)];
  if (plain != nullptr) return described(point, *plain);
  Explanation out = found->explain(point, request.key);
  if (const auto definitions = result.find("definitions")) {
    const std::string text = text_or_none(*definitions, request.key);
    if (!text.empty()) out.notes.insert(out.notes.begin(), text);
  }
  return out;
}

}  // namespace kvsim
