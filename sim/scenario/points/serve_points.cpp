#include "sim/scenario/points/serve_points.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "sim/scenario/fields/distinct.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/fields/list_keys.hpp"
#include "sim/scenario/fields/serve_field.hpp"
#include "sim/scenario/points/layouts.hpp"
#include "sim/scenario/points/point_notes.hpp"
#include "sim/serve/schedulers/scheduler.hpp"
#include "traces/requests/generate/workload.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// One requested workload.
struct RequestedRequests {
  Field field;        // with one value in place of each list
  ordered_json keys;  // these values, and scalars of the same names
};

/// Wraps `value` as a field at `place` of the same file.
Field field_at(const Field& place, const json& value) {
  json document;
  const json::json_pointer pointer{place.pointer()};
  document[pointer] = value;
  Field at = Field::wrap(std::move(document), place.file());
  std::string token;
  const std::string path = place.pointer() + "/";
  for (std::size_t i = 1; i < path.size(); ++i) {
    if (path[i] != '/') {
      token += path[i];
      continue;
    }
    at = at.is_array() ? at.items().at(std::stoul(token)) : at.at(token);
    token.clear();
  }
  return at;
}

/// Returns the member at `pointer` within the objects of `item`; nullopt if it is absent or null.
std::optional<Field> member_at(const Field& item, std::string_view pointer) {
  std::optional<Field> at = item;
  while (at && !pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view token = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(token.size());
    at = at->is_object() ? at->find(token) : std::nullopt;
  }
  return at;
}

void refuse_repeated_paths(const std::vector<Field>& paths) {
  DistinctValues distinct;
  for (const Field& path : paths) {
    if (path.is_string()) distinct.add(fs::path{path.string()}.lexically_normal().string(), path);
  }
}

std::vector<RequestedRequests> request_choices(const Field& field) {
  std::vector<RequestedRequests> all;
  for (const Field& item : field.one_or_more()) {
    if (!item.is_object()) item.expected("an object: a file of requests, or a generator");
    std::vector<std::pair<json, ordered_json>> of_item{{item.raw(), ordered_json::object()}};
    for (const RequestList& list : request_lists()) {
      const json::json_pointer pointer{std::string{list.pointer}};
      const auto given = member_at(item, list.pointer);
      if (!given) continue;
      const std::vector<Field> values = given->one_or_more();
      if (list.name == "workload") refuse_repeated_paths(values);
      std::vector<std::pair<json, ordered_json>> longer;
      for (const auto& [value, keys] : of_item) {
        for (const Field& one : values) {
          longer.emplace_back(value, keys);
          longer.back().first[pointer] = one.raw();
          if (list.name != "workload") longer.back().second[std::string{list.name}] = one.raw();
        }
      }
      of_item = std::move(longer);
      if (of_item.size() > kMaxPoints) {
        item.fail(fmt::format("its lists make more than {} points", kMaxPoints));
      }
    }
    for (auto& [value, keys] : of_item) {
      all.push_back({field_at(item, value), std::move(keys)});
    }
  }
  if (all.empty()) field.expected("at least one workload");
  return all;
}

struct Workload {
  RequestedRequests requested;
  std::shared_ptr<const RequestTrace> trace;
  std::int32_t prompt = 1;  // longest
  std::int32_t output = 0;
};

Workload make(RequestedRequests requested, const PointsInput& in) {
  const WorkloadSpec spec = read_workload(requested.field, in.folder);
  auto trace = placed(requested.field, [&] {
    return std::make_shared<const RequestTrace>(make_workload(spec, in.seed));
  });
  Workload out{std::move(requested), trace};
  for (const Request& r : trace->requests) {
    out.prompt = std::max(out.prompt, r.prompt_tokens);
    out.output = std::max(out.output, r.output_tokens);
  }
  return out;
}

/// All keys of a group of services, with the choices for each.
struct ServeAxes {
  EngineAxes engine;
  Choices<std::int64_t> stages;
  std::vector<Members> clusters, speculations, schedulers;
  std::vector<Workload> workloads;
  SloSpec slo;
  Bytes host_memory{0};
  NvmeSpec nvme{};
  std::optional<ServiceCalibration> bench{};
  OffloadSpec offload{};
  std::string tier_codec{};
  std::optional<AllocatorConfig> allocator;
};

std::vector<Members> members_or_none(const Group& group, std::string_view key) {
  if (const auto field = group.find(key)) return member_choices(*field, key);
  return {Members{}};
}

ServeAxes read_serve_axes(const Group& group, const PointsInput& in, InlineDefinitions& own) {
  ServeAxes axes;
  axes.engine = read_engine_axes(group, in.folder, own);
  axes.allocator = read_allocator(group, axes.engine, true);
  if (const auto stages = group.find("pipeline_parallel")) {
    axes.stages = read_counts(*stages, "pipeline_parallel");
  } else {
    axes.stages = {{1, group.place()}};
  }
  axes.clusters = members_or_none(group, "cluster");
  axes.speculations = members_or_none(group, "speculation");
  if (const auto field = group.find("speculation")) {
    for (const Field& item : field->one_or_more()) {
      if (!item.has("draft")) item.fail("\"draft\" is missing");
    }
  }
  axes.schedulers = members_or_none(group, "scheduler");
  if (const auto slo = group.find("slo")) axes.slo = read_slo(*slo);
  if (const auto memory = group.find("host_memory")) {
    axes.host_memory = read_size(*memory, "point", "host_memory");
  }
  if (const auto nvme = group.find("nvme")) axes.nvme = read_nvme(*nvme);
  if (const auto bench = group.find("bench")) axes.bench = read_bench(*bench);
  if (const auto offload = group.find("offload")) axes.offload = read_offload(*offload);
  if (const auto codec = group.find("tier_codec")) {
    axes.tier_codec = read_name(*codec, "point", "tier_codec");
  }
  for (RequestedRequests& requested : request_choices(group.required("requests"))) {
    axes.workloads.push_back(make(std::move(requested), in));
  }
  return axes;
}

void put_members(ordered_json& keys, const Members& members, std::string_view name_as) {
  for (const auto& [key, value] : members) {
    keys[key == "name" || key == "draft" ? std::string{name_as} : key] = value.raw();
  }
}

ordered_json serve_keys(const ServeSpec& spec, ordered_json keys, const Workload& workload,
                        const Members& cluster, const Members& scheduler) {
  keys["pipeline_parallel"] = spec.pipeline_parallel;
  keys["replicas"] = spec.cluster.replicas;
  put_members(keys, cluster, "cluster");
  if (spec.speculation.is_on()) {
    keys["draft"] = name_of(spec.speculation);
    keys["draft_tokens"] = spec.speculation.tokens;
    if (spec.speculation.steps > 0) keys["draft_steps"] = spec.speculation.steps;
    if (spec.speculation.topk > 1) keys["draft_topk"] = spec.speculation.topk;
    keys["acceptance"] = spec.speculation.acceptance;
  }
  put_members(keys, scheduler, "scheduler");
  keys["workload"] = spec.requests->name;
  for (const auto& item : workload.requested.keys.items()) keys[item.key()] = item.value();
  if (spec.host_memory > Bytes{0}) keys["host_memory_bytes"] = spec.host_memory.count();
  if (spec.nvme.capacity > Bytes{0}) {
    keys["nvme_bytes"] = spec.nvme.capacity.count();
    keys["nvme_read_bytes_s"] = spec.nvme.read.count();
    keys["nvme_write_bytes_s"] = spec.nvme.write.count();
  }
  if (spec.offload.to != OffloadTier::kNone) {
    keys["offload"] = spec.offload.to == OffloadTier::kHost ? "host" : "nvme";
    keys["prefetch"] = spec.offload.prefetch;
    keys["reuse"] = spec.offload.reuse;
  }
  if (!spec.tier_codec.empty()) keys["tier_codec"] = spec.tier_codec;
  return keys;
}

/// Returns the layout of a point, or all layouts to be searched.
std::vector<Layout> layouts(const ServeAxes& axes, const CartesianIndex& at, const StaticSpec& part,
                            const std::optional<LayoutSearch>& search) {
  if (!search) {
    const ClusterSpec cluster = read_cluster(axes.clusters[at[8]]);
    return {{.tensor_parallel = part.tensor_parallel,
             .pipeline_parallel = static_cast<std::int32_t>(axes.stages[at[7]].value),
             .context_parallel = part.options.context_parallel.value_or(1),
             .prefill_context = part.options.prefill_context.value_or(1),
             .expert_parallel = part.options.expert_parallel.value_or(1),
             .replicas = cluster.replicas,
             .prefill_replicas = cluster.prefill_replicas}};
  }
  const Stack stack = with_options(*part.stack, part.options, {part.gpu, part.llm, 1});
  StackOptions options;
  std::string scheduler = read_scheduler(axes.schedulers[at[10]], options).name;
  if (scheduler.empty()) scheduler = default_scheduler(stack);
  return layouts_of(*part.llm, *part.gpu, stack, *search, scheduler != "static");
}

/// Checks that keys which a search of layouts determines are absent, and that those it needs are
/// present.
void check_layouts(const Group& group, const LayoutSearch& search) {
  const auto refuse = [](const Field& field, std::string_view key) {
    field.at(key).fail("expected none with /plan/layouts, which searches it");
  };
  for (const char* key : {"gpu_count", "pipeline_parallel"}) {
    if (const auto field = group.find(key)) {
      field->fail("expected none with /plan/layouts, which searches it");
    }
  }
  for (const char* key :
       {"expert_parallel", "decode_context_parallel", "prefill_context_parallel"}) {
    if (const auto engine = group.find("engine"); engine && engine->has(key)) refuse(*engine, key);
  }
  const auto clusters = group.find("cluster");
  bool has_links = clusters.has_value();
  if (clusters) {
    for (const Field& cluster : clusters->one_or_more()) {
      for (const char* key : {"replicas", "prefill_replicas"}) {
        if (cluster.has(key)) refuse(cluster, key);
      }
      has_links = has_links && cluster.has("link");
    }
  }
  if (search.disaggregated && !has_links) {
    group.place().fail(
        "expected the link of an engine to the others with /plan/disaggregated (key "
        "/cluster/link, such as \"50 GB/s\"): caches move between nodes");
  }
}

}  // namespace

void check_serve_keys(const Field& keys, const fs::path& folder) {
  const auto each = [&](std::string_view key, auto&& read) {
    if (const auto field = keys.find(key)) {
      for (const Members& members : member_choices(*field, key)) (void)read(members);
    }
  };
  each("scheduler", [](const Members& members) {
    StackOptions engine;
    return read_scheduler(members, engine);
  });
  each("cluster", read_cluster);
  each("speculation", read_speculation);
  if (const auto field = keys.find("slo")) (void)read_slo(*field);
  if (const auto field = keys.find("pipeline_parallel")) {
    (void)read_counts(*field, "pipeline_parallel");
  }
  if (const auto field = keys.find("host_memory")) {
    (void)read_size(*field, "point", "host_memory");
  }
  if (const auto field = keys.find("nvme")) (void)read_nvme(*field);
  if (const auto field = keys.find("bench")) (void)read_bench(*field);
  if (const auto field = keys.find("offload")) (void)read_offload(*field);
  if (const auto field = keys.find("tier_codec")) (void)read_name(*field, "point", "tier_codec");
  if (const auto field = keys.find("requests")) {
    for (const RequestedRequests& requested : request_choices(*field)) {
      (void)read_workload(requested.field, folder);
    }
  }
}

void add_serve_points(const Group& group, const PointsInput& in, InlineDefinitions& own,
                      std::vector<ScenarioPoint>& points) {
  if (in.layouts) check_layouts(group, *in.layouts);
  const ServeAxes axes = read_serve_axes(group, in, own);
  const EngineAxes& engine = axes.engine;
  std::vector<std::size_t> sizes = engine.sizes();
  sizes.insert(sizes.end(), {axes.stages.size(), axes.clusters.size(), axes.speculations.size(),
                             axes.schedulers.size(), axes.workloads.size(), engine.methods.size()});
  CartesianIndex at{std::move(sizes)};
  check_number_of_points(points.size(), at, engine.models.front().field);
  ResolvedMethods resolved{engine};
  for (auto left = static_cast<std::size_t>(at.product()); left > 0; --left, at.advance()) {
    const Members& cluster = axes.clusters[at[8]];
    const Members& speculation = axes.speculations[at[9]];
    const Members& scheduler = axes.schedulers[at[10]];
    const Workload& workload = axes.workloads[at[11]];
    const RequestedMethod& method = engine.methods[at[12]].value;
    const MethodSpec in_cache = method_in_cache(engine, at, method.spec);
    StaticSpec part = engine_spec(engine, at);
    part.prompt_tokens = workload.prompt;
    part.output_tokens = workload.output;
    check_sizes(part, workload.requested.field);
    part.method = resolved.resolve(at[12], in_cache, at, part.prompt_tokens, part.kv_dtype);

    for (const Layout& layout : layouts(axes, at, part, in.layouts)) {
      StaticSpec one = part;
      one.tensor_parallel = layout.tensor_parallel;
      if (layout.context_parallel > 1) one.options.context_parallel = layout.context_parallel;
      if (layout.prefill_context > 1) one.options.prefill_context = layout.prefill_context;
      if (layout.expert_parallel > 1) one.options.expert_parallel = layout.expert_parallel;
      ServeSpec spec;
      spec.scheduler = read_scheduler(scheduler, one.options);
      spec.llm = one.llm;
      spec.gpu = one.gpu;
      spec.stack = one.stack;
      spec.method = in_cache;
      spec.weight_dtype = one.weight_dtype;
      spec.kv_dtype = one.kv_dtype;
      spec.calibration = one.calibration;
      spec.weight_format = one.weight_format;
      spec.tensor_parallel = one.tensor_parallel;
      spec.pipeline_parallel = layout.pipeline_parallel;
      if (spec.pipeline_parallel > spec.llm->n_layers()) {
        axes.stages[at[7]].field.expected(
            fmt::format("at most the {} layers of {}", spec.llm->n_layers(), spec.llm->name));
      }
      spec.options = one.options;
      spec.allocator = axes.allocator;
      spec.requests = workload.trace;
      spec.slo = axes.slo;
      spec.cluster = read_cluster(cluster);
      spec.cluster.replicas = layout.replicas;
      spec.cluster.prefill_replicas = layout.prefill_replicas;
      spec.speculation = read_speculation(speculation);
      if (const auto field = group.find("speculation"); field && !spec.speculation.is_on()) {
        field->fail("\"draft\" is missing");
      }
      spec.host_memory = axes.host_memory;
      spec.nvme = axes.nvme;
      spec.calibrated = axes.bench;
      spec.offload = axes.offload;
      spec.tier_codec = axes.tier_codec;
      spec.seed = in.seed;

      ordered_json keys =
          serve_keys(spec, engine_keys(one, engine.calibrations[at[4]].value.name, in_cache),
                     workload, cluster, scheduler);
      if (layout.prefill_replicas > 0) keys["prefill_replicas"] = layout.prefill_replicas;
      if (in.layouts && layout.context_parallel > 1) {
        keys["decode_context_parallel"] = layout.context_parallel;
      }
      if (in.layouts && layout.prefill_context > 1) {
        keys["prefill_context_parallel"] = layout.prefill_context;
      }
      if (in.layouts && layout.expert_parallel > 1) {
        keys["expert_parallel"] = layout.expert_parallel;
      }
      if (!engine.memory.is_null()) keys["memory"] = engine.memory;
      if (!engine.engine.is_null()) keys["engine"] = engine.engine;
      if (!method.measured_on.empty()) keys["measured_on"] = method.measured_on;
      ScenarioPoint point{.spec = one, .method = in_cache, .keys = std::move(keys)};
      resolved.resolve_sizes(at[12], point);
      add_method_notes(point.method.name, *point.spec.stack, point.notes);
      point.serve = std::move(spec);
      points.push_back(std::move(point));
    }
  }
}

}  // namespace kvsim
