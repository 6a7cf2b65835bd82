#include "sim/scenario/points/points.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/cost/step.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/units_format.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/points/axes.hpp"
#include "sim/scenario/points/labels.hpp"
#include "sim/scenario/points/point_notes.hpp"
#include "sim/scenario/points/serve_points.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A static batch: an engine and its workload.
struct StaticAxes {
  EngineAxes engine;
  Choices<std::int64_t> batches, prompts, outputs;  // prompts are empty if a plan finds them
  std::optional<AllocatorConfig> allocator;
  bool plans = false;
};

/// The prompt length in tokens for which a plan resolves methods, independent of its search.
std::int64_t representative_prompt(const Llm& llm, std::int64_t output) {
  constexpr std::int64_t kUnpublished = 131072;
  const std::int64_t max = llm.max_positions > 0 ? llm.max_positions : kUnpublished;
  return std::max<std::int64_t>(1, max - output);
}

/// Errors: InputError if the engine would reject the sequences.
void check_model_len(const StaticSpec& spec, const Field& place) {
  const std::int64_t tokens = spec.prompt_tokens + spec.output_tokens;
  const auto& longest = spec.options.max_model_len;
  if (!longest || tokens <= *longest) return;
  place.fail(fmt::format("{} prompt and {} output tokens exceed max_model_len {}",
                         with_commas(spec.prompt_tokens), with_commas(spec.output_tokens),
                         with_commas(*longest)));
}

/// Errors: InputError if the engine would not run the batch concurrently.
void check_num_seqs(const StaticSpec& spec, const Field& place) {
  const auto& most = spec.options.max_num_seqs;
  if (!most || spec.batch <= *most) return;
  place.fail(
      fmt::format("a batch of {} sequences exceeds max_num_seqs {}; a service runs more in turn",
                  with_commas(spec.batch), with_commas(*most)));
}

StaticAxes read_static_axes(const Group& group, const PointsInput& in, InlineDefinitions& own) {
  StaticAxes axes;
  axes.engine = read_engine_axes(group, in.folder, own);
  axes.plans = in.plans;
  if (const auto field = group.find("engine")) {
    for (const char* key :
         {"kv_blocks", "compaction", "api_servers", "front_end_latency", "front_end_request",
          "front_end_prompt_token", "front_end_token", "front_end_sequence"}) {
      if (const auto given = field->find(key)) {
        given->fail(R"(needs "kind": "serve", and this scenario is "static")");
      }
    }
  }
  axes.allocator = read_allocator(group, axes.engine, false);
  if (const auto batches = group.find("batch")) {
    axes.batches = read_counts(*batches, "batch");
  } else {
    axes.batches = {{1, group.place()}};
  }
  if (!in.finds_prompts || group.find("prompt_tokens")) {
    axes.prompts = read_counts(group.required("prompt_tokens"), "prompt_tokens");
  }
  axes.outputs = read_counts(group.required("output_tokens"), "output_tokens");
  return axes;
}

void add_static(const StaticAxes& axes, std::vector<ScenarioPoint>& points) {
  const EngineAxes& engine = axes.engine;
  std::vector<std::size_t> sizes = engine.sizes();
  sizes.insert(sizes.end(), {axes.batches.size(), std::max<std::size_t>(1, axes.prompts.size()),
                             axes.outputs.size(), engine.methods.size()});
  CartesianIndex at{std::move(sizes)};
  check_number_of_points(points.size(), at, engine.models.front().field);
  ResolvedMethods resolved{engine};
  for (auto left = static_cast<std::size_t>(at.product()); left > 0; --left, at.advance()) {
    const RequestedMethod& method = engine.methods[at[10]].value;
    const MethodSpec in_cache = method_in_cache(engine, at, method.spec);
    StaticSpec spec = engine_spec(engine, at);
    spec.batch = axes.batches[at[7]].value;
    spec.output_tokens = axes.outputs[at[9]].value;
    const bool found = axes.prompts.empty();
    spec.prompt_tokens =
        found ? representative_prompt(*spec.llm, spec.output_tokens) : axes.prompts[at[8]].value;
    spec.allocator = axes.allocator;
    check_sizes(spec, found ? axes.outputs[at[9]].field : axes.prompts[at[8]].field);
    if (!axes.plans) check_model_len(spec, axes.prompts[at[8]].field);
    check_num_seqs(spec, axes.batches[at[7]].field);
    spec.method = resolved.resolve(at[10], in_cache, at, spec.prompt_tokens, spec.kv_dtype);
    ordered_json keys = engine_keys(spec, engine.calibrations[at[4]].value.name, in_cache);
    keys["batch"] = spec.batch;
    if (!found) keys["prompt_tokens"] = spec.prompt_tokens;
    keys["output_tokens"] = spec.output_tokens;
    if (!engine.memory.is_null()) keys["memory"] = engine.memory;
    if (!engine.engine.is_null()) keys["engine"] = engine.engine;
    if (!method.measured_on.empty()) keys["measured_on"] = method.measured_on;
    ScenarioPoint point{.spec = spec, .method = in_cache, .keys = std::move(keys)};
    point.kv_bytes_wanted = kv_bytes_wanted(spec);
    resolved.resolve_sizes(at[10], point);
    const std::int64_t tokens = spec.prompt_tokens + spec.output_tokens;
    add_method_notes(in_cache.name, *spec.stack, point.notes);
    if (auto note = exceeded_positions(*spec.llm, tokens); note && !found) {
      point.notes.push_back(std::move(*note));
    }
    points.push_back(std::move(point));
  }
}

}  // namespace

void check_point_keys(const Field& keys, const fs::path& folder) {
  check_engine_keys(keys, folder);
  for (const std::string_view key : {"batch", "prompt_tokens", "output_tokens"}) {
    if (const auto field = keys.find(key)) (void)read_counts(*field, key);
  }
  check_serve_keys(keys, folder);
}

std::vector<ScenarioPoint> read_points(const Field& scenario, const PointsInput& in,
                                       InlineDefinitions& own) {
  std::vector<ScenarioPoint> points;
  const auto add = [&](const Group& group) {
    if (in.serves) {
      add_serve_points(group, in, own, points);
    } else {
      add_static(read_static_axes(group, in, own), points);
    }
  };
  if (const auto groups = scenario.find("points")) {
    const std::vector<Field> all = groups->items();
    if (all.empty()) groups->expected("at least one group of points");
    // A group produces at least one point: too many groups are rejected before any is read.
    if (all.size() > kMaxPoints) {
      groups->fail(
          fmt::format("the groups make at least {} points, more than {}", all.size(), kMaxPoints));
    }
    for (const Field& group : all) add(Group{scenario, group});
  } else {
    const auto names = scenario_key_names("point");
    const bool none = std::none_of(names.begin(), names.end(),
                                   [&](const std::string& name) { return scenario.has(name); });
    if (none && scenario.has("replay")) return {};
    add(Group{scenario, std::nullopt});
  }
  set_labels(points);
  return points;
}

bool has_closed_law(const StaticSpec& spec) {
  const std::int64_t prompt = spec.prompt_tokens;
  const std::int64_t tokens = prompt + spec.output_tokens;
  for (std::int32_t layer = 0; layer < spec.llm->n_layers(); ++layer) {
    if (!spec.method->entries_held(layer, prompt, prompt)) return false;
    if (tokens == prompt) continue;
    if (!spec.method->entries_held(layer, prompt, tokens)) return false;
    if (!spec.method->entries_attended(layer, prompt, tokens)) return false;
  }
  return true;
}

bool has_closed_bytes(const StaticSpec& spec) {
  const std::int64_t tokens = spec.prompt_tokens + spec.output_tokens;
  for (std::int32_t layer = 0; layer < spec.llm->n_layers(); ++layer) {
    const AttentionSpec& a = spec.llm->layers[static_cast<std::size_t>(layer)].attention;
    const LayerShape shape{
        .n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim};
    if (!spec.method->layer_bytes(layer, shape, spec.kv_dtype, spec.prompt_tokens, tokens)) {
      return false;
    }
  }
  return true;
}

std::optional<Bytes> kv_bytes_wanted(const StaticSpec& spec) {
  const std::int64_t tokens = spec.prompt_tokens + spec.output_tokens;
  const std::int32_t ranks = spec.stack != nullptr ? tensor_ranks(*spec.stack, spec.tensor_parallel)
                                                   : spec.tensor_parallel;
  const Llm shard = tensor_shard(*spec.llm, ranks, spec.options.context_parallel.value_or(1));
  const CostInput in{.llm = &shard,
                     .method = spec.method.get(),
                     .stack = &find_stack("ideal"),  // no rounding
                     .weight_dtype = spec.weight_dtype,
                     .kv_dtype = spec.kv_dtype,
                     .batch = spec.batch,
                     .prompt = spec.prompt_tokens};
  Bytes total;
  for (std::int32_t layer = 0; layer < spec.llm->n_layers(); ++layer) {
    if (!spec.method->entries_held(layer, spec.prompt_tokens, tokens)) return std::nullopt;
    total += layer_cache(in, layer, held_entries(in, layer, spec.prompt_tokens, tokens)).total();
  }
  return total;
}

}  // namespace kvsim
