#include "sim/scenario/points/axes.hpp"

#include <algorithm>
#include <array>
#include <system_error>

#include <fmt/format.h>

#include "models/cost/iteration/layer_split.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/units/units_format.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/distinct.hpp"
#include "sim/scenario/fields/engine_field.hpp"
#include "sim/scenario/fields/key_value.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Largest byte count for which sums and products of a run are exact.
constexpr double kMaxBytes = 0x1p58;

Llm read_own_model(const Field& field, const fs::path& folder) {
  field.allow_only(scenario_key_names("model"));
  const Field config = field.at("config");
  const fs::path path = (folder / config.string()).lexically_normal();
  if (std::error_code status; !fs::is_regular_file(path, status)) {
    config.fail(fmt::format("no such file: {}", path.string()));
  }
  std::string name;
  if (const auto given = field.find("name")) name = given->string();
  if (name.empty()) name = fs::absolute(path).parent_path().filename().string();
  return read_hf_config_file(path, name);
}

void refuse_unless_model(const Field& field) {
  if (!field.is_string() && !field.is_object()) {
    field.expected("a model's name, or {\"config\": \"path/config.json\"}");
  }
}

Choices<const Llm*> read_models(const Field& field, const fs::path& folder,
                                InlineDefinitions& own) {
  Choices<const Llm*> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    refuse_unless_model(item);
    if (item.is_object()) {
      own.models.push_back(std::make_shared<const Llm>(read_own_model(item, folder)));
      out.push_back({own.models.back().get(), item});
      const fs::path config = (folder / item.at("config").string()).lexically_normal();
      distinct.add(fmt::format("{} of {}", own.models.back()->name, config.string()), item);
    } else {
      const std::string name = item.string();
      if (name.ends_with(".json")) {
        item.fail(fmt::format("a model's own file is given as {{\"config\": \"{}\"}}", name));
      }
      out.push_back({placed(item, [&] { return &find_llm(name); }), item});
      distinct.add(out.back().value->name, item);
    }
  }
  return out;
}

Choices<const Gpu*> read_gpus(const Field& field, InlineDefinitions& own) {
  Choices<const Gpu*> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    NamedGpu named = placed(item, [&] { return gpu_of_user(item.string()); });
    out.push_back({named.gpu, item});
    distinct.add(named.gpu->name, item);
    const bool is_known =
        std::find(own.notes.begin(), own.notes.end(), named.note) != own.notes.end();
    if (!named.note.empty() && !is_known) own.notes.push_back(std::move(named.note));
  }
  return out;
}

const Stack* read_stack_choice(const Field& item) {
  if (item.is_string()) return placed(item, [&] { return &find_stack(item.string()); });
  if (!item.is_object()) {
    item.expected("a stack's name, or {\"name\": \"vllm\", \"version\": \"0.19\"}");
  }
  item.allow_only(scenario_key_names("stack"));
  const Field name = item.at("name");
  const Stack& base = placed(name, [&]() -> const Stack& { return find_stack(name.string()); });
  std::string label = base.name;
  if (const auto version = item.find("version")) {
    if (version->is_number()) version->expected("a version in quotes, such as \"0.19\"");
    label += "@" + version->string();
    placed(*version, [&] { return &find_stack(label); });
  }
  if (const auto usage = item.find("usage")) {
    label += ":" + usage->string();
    placed(*usage, [&] { return &find_stack(label); });
  }
  return &find_stack(label);
}

Choices<const Stack*> read_stacks(const Field& field) {
  Choices<const Stack*> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    out.push_back({read_stack_choice(item), item});
    distinct.add(label_of(*out.back().value), item);
  }
  return out;
}

Choices<RequestedCalibration> read_calibrations_of(const Field& field, const fs::path& folder,
                                                   InlineDefinitions& own) {
  Choices<RequestedCalibration> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    out.push_back({read_calibration_field(item, folder, own.calibrations), item});
    distinct.add(fs::path{item.string()}.lexically_normal().string(), item);
  }
  return out;
}

Choices<RequestedCache> read_cache_formats(const Field& field) {
  Choices<RequestedCache> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    if (!item.is_string()) (void)item.dtype();  // throws
    const std::string word = item.string();
    RequestedCache requested{.dtype = parse_dtype(word), .method = {}};
    if (!requested.dtype) {
      const auto method = find_cache_format(word);
      if (!method) {
        std::vector<std::string> known;
        for (const auto& entry : kDtypes) known.emplace_back(entry.name);
        known.insert(known.end(), cache_formats().begin(), cache_formats().end());
        item.fail(unknown_name("format of the cache", word, known));
      }
      requested.method = *method;
    }
    distinct.add(requested.dtype ? std::string{name_of(*requested.dtype)} : requested.method, item);
    out.push_back({std::move(requested), item});
  }
  return out;
}

Choices<RequestedWeights> read_weights(const Field& field) {
  Choices<RequestedWeights> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    if (!item.is_string()) (void)item.dtype();  // throws
    const std::string word = item.string();
    const auto dtype = parse_dtype(word);
    const WeightFormat* format = nullptr;
    std::vector<std::string> known;
    for (const auto& entry : kDtypes) known.emplace_back(entry.name);
    for (const WeightFormat& candidate : builtin_weight_formats()) {
      known.emplace_back(candidate.name);
      if (candidate.name == word) format = &candidate;
    }
    if (!dtype && format == nullptr) item.fail(unknown_name("format of weights", word, known));
    distinct.add(std::string{dtype ? name_of(*dtype) : format->name}, item);
    out.push_back({{.dtype = dtype, .format = format}, item});
  }
  return out;
}

Choices<RequestedMethod> read_method_choices(const Field& field, const fs::path& folder) {
  Choices<RequestedMethod> out;
  DistinctValues distinct;
  for (const Field& item : field.one_or_more()) {
    std::string named;
    fs::path trace;
    if (const auto on = item.is_object() ? item.find("measured_on") : std::nullopt) {
      named = on->string();
      trace = (folder / named).lexically_normal();
      if (std::error_code status; !fs::is_regular_file(trace, status)) {
        on->fail(fmt::format("no such file: {}", trace.string()));
      }
    }
    for (MethodSpec& spec : read_methods(item)) {
      placed(item, [&] { return takes_budget(spec.name); });  // rejects an unknown name
      distinct.add(fmt::format("{} on {}", canonical_text(spec), trace.string()), item);
      out.push_back({{std::move(spec), named, trace}, item});
    }
  }
  return out;
}

const Gpu* corrected(const Gpu* gpu, const Field& memory, InlineDefinitions& own) {
  const KeyReader keys{memory, "memory"};
  const auto nominal = keys.size("hbm");
  const auto usable = keys.size("usable_hbm");
  if (!nominal && !usable) return gpu;
  auto copy = std::make_shared<Gpu>(*gpu);
  if (nominal) copy->hbm = copy->hbm_usable = *nominal;
  if (usable) {
    if (*usable > copy->hbm) {
      memory.at("usable_hbm").expected(fmt::format("at most the {} of {}", copy->hbm, gpu->name));
    }
    copy->hbm_usable = *usable;
  }
  own.gpus.push_back(copy);
  return own.gpus.back().get();
}

ordered_json params_json(const Params& params) {
  ordered_json out = ordered_json::object();
  for (const auto& [name, value] : params) {
    std::visit([&out, &key = name](const auto& v) { out[key] = v; }, value);
  }
  return out;
}

/// Returns the name of the trace on which the method is measured. Errors: InputError if it cannot
/// be read, does not have data that the method needs, or is so short that the method has a closed
/// form there.
std::string measurable_on(const RequestedMethod& requested, const Field& place) {
  return placed(place.at("measured_on"), [&] {
    const TraceInfo info = Trace::open(requested.trace).info();
    const auto method = resolve_for_trace(requested.spec, info);
    const LayerShape shape{
        .n_heads = info.n_heads, .n_kv_heads = info.n_kv_heads, .head_dim = info.head_dim};
    bool closed = true;
    for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
      closed =
          closed && method->layer_bytes(layer, shape, info.dtype, info.prompt_tokens, info.tokens);
    }
    if (closed) {
      throw InputError{fmt::format(
          "nothing to measure: on trace \"{}\" of {} + {} tokens method \"{}\" has a closed form",
          info.name, info.prompt_tokens, info.tokens - info.prompt_tokens, requested.spec.name)};
    }
    return info.name;
  });
}

}  // namespace

std::optional<Field> Group::find(std::string_view key) const {
  // A null in the group removes the scenario's key.
  if (own_ && own_->raw().contains(key)) return own_->find(key);
  return scenario_.find(key);
}

Field Group::required(std::string_view key) const {
  if (const auto field = find(key)) return *field;
  place().fail(fmt::format("\"{}\" is missing", key));
}

Choices<std::int64_t> read_counts(const Field& field, std::string_view key) {
  Choices<std::int64_t> out;
  for (const Field& item : field.one_or_more()) {
    out.push_back({read_integer(item, "point", key), item});
  }
  return out;
}

namespace {

std::optional<AllocatorConfig> allocator_settings(const Field& memory) {
  const bool simulates = KeyReader{memory, "memory"}.name("allocator") == "simulate";
  const auto conf = memory.find("alloc_conf");
  if (conf && !simulates) conf->fail("needs \"allocator\": \"simulate\"");
  if (!simulates) return std::nullopt;
  return conf ? parse_alloc_conf(conf->string(), conf->place()) : AllocatorConfig{};
}

}  // namespace

std::optional<AllocatorConfig> read_allocator(const Group& group, const EngineAxes& axes,
                                              bool serves) {
  const auto memory = group.find("memory");
  if (!memory) return std::nullopt;
  auto settings = allocator_settings(*memory);
  if (!settings) return settings;
  const Field how = memory->at("allocator");
  for (const auto& stack : axes.stacks) {
    if (serves && stack.value->growth == CacheGrowth::kPaged) {
      how.fail(fmt::format(
          "stack \"{}\" keeps the caches of a service in one pool, a single allocation at its "
          "start: expected analytic, or a stack that serves static batches",
          stack.value->name));
    }
    if (!stack.value->rounds_allocations) {
      how.fail(
          fmt::format("stack \"{}\" does not use PyTorch's caching allocator", stack.value->name));
    }
  }
  return settings;
}

std::vector<std::size_t> EngineAxes::sizes() const {
  return {models.size(),
          gpus.size(),
          gpu_counts.size(),
          stacks.size(),
          calibrations.size(),
          dtypes ? dtypes->size() : 1,
          kv_dtypes ? kv_dtypes->size() : 1};
}

/// Sets the engine's format of recurrent states. Errors: InputError if no model has any.
void set_state_dtype(EngineAxes& axes, const Field& place, InlineDefinitions& own) {
  bool any = false;
  for (auto& model : axes.models) {
    Llm llm = *model.value;
    bool has_states = false;
    for (LayerSpec& layer : llm.layers) {
      const StateKind kind = layer.state.kind;
      if (kind == StateKind::kNone || kind == StateKind::kShortConv) continue;
      layer.state.dtype = *axes.options.state_dtype;
      has_states = true;
    }
    if (!has_states) continue;
    any = true;
    own.models.push_back(std::make_shared<const Llm>(std::move(llm)));
    model.value = own.models.back().get();
  }
  if (!any) {
    place.fail(fmt::format("{} has no recurrent states", axes.models.front().value->name));
  }
}

EngineAxes read_engine_axes(const Group& group, const fs::path& folder, InlineDefinitions& own) {
  EngineAxes axes;
  axes.models = read_models(group.required("model"), folder, own);
  axes.gpus = read_gpus(group.required("gpu"), own);
  if (const auto counts = group.find("gpu_count")) {
    axes.gpu_counts = read_counts(*counts, "gpu_count");
  } else {
    axes.gpu_counts = {{1, group.place()}};
  }
  if (const auto engine = group.find("engine")) {
    axes.options = read_engine(*engine);
    axes.engine = engine->raw();
    if (axes.options.state_dtype) set_state_dtype(axes, engine->at("state_dtype"), own);
  }
  if (const auto memory = group.find("memory")) {
    for (auto& gpu : axes.gpus) gpu.value = corrected(gpu.value, *memory, own);
    axes.memory = memory->raw();
  }
  if (const auto stacks = group.find("stack")) {
    axes.stacks = read_stacks(*stacks);
  } else {
    axes.stacks = {{&find_stack("ideal"), group.place()}};
  }
  if (const auto calibrations = group.find("calibration")) {
    axes.calibrations = read_calibrations_of(*calibrations, folder, own);
  } else {
    axes.calibrations = {
        {RequestedCalibration{.calibration = &builtin_calibration()}, group.place()}};
  }
  if (const auto dtypes = group.find("dtype")) axes.dtypes = read_weights(*dtypes);
  if (const auto dtypes = group.find("kv_dtype")) axes.kv_dtypes = read_cache_formats(*dtypes);
  if (const auto methods = group.find("method")) {
    axes.methods = read_method_choices(*methods, folder);
  } else {
    axes.methods = {{RequestedMethod{{"full", {}, {}}, {}, {}}, group.place()}};
  }
  return axes;
}

void check_engine_keys(const Field& keys, const fs::path& folder) {
  InlineDefinitions own;
  if (const auto field = keys.find("model")) (void)read_models(*field, folder, own);
  if (const auto field = keys.find("gpu")) (void)read_gpus(*field, own);
  if (const auto field = keys.find("gpu_count")) (void)read_counts(*field, "gpu_count");
  if (const auto field = keys.find("stack")) (void)read_stacks(*field);
  if (const auto field = keys.find("calibration")) {
    (void)read_calibrations_of(*field, folder, own);
  }
  if (const auto field = keys.find("dtype")) (void)read_weights(*field);
  if (const auto field = keys.find("kv_dtype")) (void)read_cache_formats(*field);
  if (const auto field = keys.find("method")) (void)read_method_choices(*field, folder);
  if (const auto field = keys.find("engine")) (void)read_engine(*field);
  if (const auto field = keys.find("memory")) {
    const KeyReader memory{*field, "memory"};
    (void)memory.size("hbm");
    (void)memory.size("usable_hbm");
    (void)allocator_settings(*field);
  }
}

void CartesianIndex::advance() {
  for (std::size_t axis = at_.size(); axis-- > 0;) {
    if (++at_[axis] < sizes_[axis]) break;
    at_[axis] = 0;
  }
}

double CartesianIndex::product() const {
  double product = 1;
  for (const std::size_t size : sizes_) product *= static_cast<double>(size);
  return product;
}

void check_number_of_points(std::size_t before, const CartesianIndex& product, const Field& place) {
  const double total = static_cast<double>(before) + product.product();
  if (total > static_cast<double>(kMaxPoints)) {
    place.fail(fmt::format("the lists make {} points, more than {}", total, kMaxPoints));
  }
}

StaticSpec engine_spec(const EngineAxes& axes, const CartesianIndex& at) {
  StaticSpec spec;
  spec.llm = axes.models[at[0]].value;
  spec.gpu = axes.gpus[at[1]].value;
  spec.tensor_parallel = static_cast<std::int32_t>(axes.gpu_counts[at[2]].value);
  spec.stack = axes.stacks[at[3]].value;
  spec.calibration = axes.calibrations[at[4]].value.calibration;
  spec.weight_dtype = spec.llm->published_dtype;
  if (axes.dtypes) {
    const RequestedWeights& requested = (*axes.dtypes)[at[5]].value;
    spec.weight_format = requested.format;
    // Modules that a quantization excludes have the format of computation.
    spec.weight_dtype = requested.dtype
                            ? *requested.dtype
                            : wide_dtype(*spec.llm, bits_of(spec.llm->published_dtype) < 16
                                                        ? spec.llm->published_dtype
                                                        : spec.llm->compute_dtype);
  }
  const Dtype by_default = default_kv_dtype(*spec.llm, spec.weight_dtype);
  spec.kv_dtype =
      axes.kv_dtypes ? (*axes.kv_dtypes)[at[6]].value.dtype.value_or(by_default) : by_default;
  spec.options = axes.options;
  if (spec.tensor_parallel > 1) {
    placed(axes.gpu_counts[at[2]].field,
           [&] { check_gpus(*spec.llm, *spec.stack, spec.tensor_parallel); });
  }
  return spec;
}

MethodSpec method_in_cache(const EngineAxes& axes, const CartesianIndex& at,
                           const MethodSpec& spec) {
  if (!axes.kv_dtypes) return spec;
  const std::string& format = (*axes.kv_dtypes)[at[6]].value.method;
  return format.empty() ? spec : in_cache_format(spec, format);
}

std::shared_ptr<const Method> ResolvedMethods::resolve(std::size_t method, const MethodSpec& spec,
                                                       const CartesianIndex& at,
                                                       std::int64_t prompt, Dtype kv_dtype) {
  const std::size_t model = at[0];
  auto& slot = resolved_[{method, model, at[6], prompt, kv_dtype}];
  if (!slot) {
    slot = placed(axes_->methods[method].field, [&] {
      return make_method(spec, prompt, method_site(*axes_->models[model].value, kv_dtype));
    });
  }
  return slot;
}

void ResolvedMethods::resolve_sizes(std::size_t method, ScenarioPoint& point) {
  const RequestedMethod& requested = axes_->methods[method].value;
  const Field& place = axes_->methods[method].field;
  std::string& trace = traces_[method];
  if (has_closed_law(point.spec) &&
      (requested.measured_on.empty() || has_closed_bytes(point.spec))) {
    if (!requested.measured_on.empty()) {
      point.notes.emplace_back("measured_on is not used: the size law is in closed form");
    }
    return;
  }
  if (requested.measured_on.empty()) {
    place.fail(
        fmt::format("method \"{}\" has no closed size law: the entries it keeps depend on the "
                    "data; set \"measured_on\": \"TRACE.safetensors\" in its object to measure "
                    "them by a replay of that trace",
                    requested.spec.name));
  }
  if (trace.empty()) trace = measurable_on(requested, place);
  point.measured_on = requested.trace;
  point.size_law = "measured on " + trace;
}

void check_sizes(const StaticSpec& spec, const Field& place) {
  const auto batch = static_cast<double>(spec.batch);
  const auto prompt = static_cast<double>(spec.prompt_tokens);
  const double tokens = prompt + static_cast<double>(spec.output_tokens);
  double cache = 0;
  double scores = 0;
  for (const LayerSpec& layer : spec.llm->layers) {
    cache += batch * tokens * 4 * static_cast<double>(layer.attention.n_heads) *
             static_cast<double>(layer.attention.head_dim + layer.attention.v_head_dim);
    scores = std::max(scores,
                      batch * prompt * prompt * 16 * static_cast<double>(layer.attention.n_heads));
  }
  if (std::max(cache, scores) > kMaxBytes) {
    place.fail(
        fmt::format("batch {} of {} + {} tokens exceeds the number of bytes that can be counted",
                    spec.batch, spec.prompt_tokens, spec.output_tokens));
  }
}

ordered_json engine_keys(const StaticSpec& spec, const std::string& calibration,
                         const MethodSpec& method) {
  ordered_json keys;
  keys["model"] = spec.llm->name;
  keys["gpu"] = spec.gpu->name;
  keys["gpu_count"] = spec.tensor_parallel;
  keys["stack"] = label_of(*spec.stack);
  keys["calibration"] = calibration;
  keys["method"] = method.name;
  keys["budget"] = method.budget ? ordered_json(budget_number(*method.budget)) : nullptr;
  if (method.budget && method.budget->fraction == 0) keys["budget"] = method.budget->entries;
  keys["method_params"] = params_json(method.params);
  keys["dtype"] =
      spec.weight_format != nullptr ? spec.weight_format->name : name_of(spec.weight_dtype);
  keys["kv_dtype"] = name_of(spec.kv_dtype);
  return keys;
}

}  // namespace kvsim
