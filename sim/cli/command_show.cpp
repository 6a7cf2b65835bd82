#include <array>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/json/field.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "models/units/units_parse.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/kinds.hpp"
#include "sim/cli/options/model_argument.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/own/own_method.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_capacity.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Finds a model by catalogue name, or by the path of a Hugging Face config.json or its folder.
Llm model_of(const std::string& name) {
  const std::optional<fs::path> path = model_file(name, "show model");
  if (!path) return find_llm(name);
  fs::path own = path->stem();
  if (path->filename() == "config.json") {
    own = fs::absolute(*path).lexically_normal().parent_path().filename();
  }
  return read_hf_config_file(*path, own.empty() ? "model" : own.string());
}

// Options that describe an engine's cache; they require --kv-memory.
constexpr std::array<std::string_view, 9> kEngineOptions{
    "tp",           "kv-dtype",     "max-model-len",    "max-num-batched-tokens", "block-size",
    "draft-tokens", "draft-layers", "context-parallel", "no-prefix-caching"};

/// The engine whose capacity is requested; nullopt without --kv-memory. Errors: InputError.
std::optional<CapacityQuestion> capacity_of(const Arguments& arguments, const Llm& llm) {
  const auto memory = arguments.value("kv-memory");
  if (!memory) {
    for (const std::string_view option : kEngineOptions) {
      if (arguments.has(option)) {
        throw InputError{
            fmt::format("{}: expected --kv-memory next to it", arguments.typed(option))};
      }
    }
    return std::nullopt;
  }
  const auto available = parse_bytes(*memory);
  if (!available || *available <= Bytes{}) {
    throw InputError{"--kv-memory", "a size such as \"5.98 GiB\"", fmt::format("\"{}\"", *memory)};
  }
  constexpr std::int64_t kMaxTokens = 1 << 30;
  CapacityQuestion out{.available = *available};
  VllmGroupSettings& settings = out.settings;
  settings.kv_dtype = default_kv_dtype(llm, llm.published_dtype);
  if (const auto word = arguments.value("kv-dtype"); word && *word != "auto") {
    const auto dtype = parse_dtype(*word);
    if (!dtype)
      throw InputError{"--kv-dtype", "a format such as \"fp8\"", fmt::format("\"{}\"", *word)};
    settings.kv_dtype = *dtype;
  }
  const auto count = [&](std::string_view option, std::int64_t otherwise, std::int64_t low) {
    return arguments.integer(option, low, kMaxTokens).value_or(otherwise);
  };
  out.tensor_parallel = static_cast<std::int32_t>(arguments.integer("tp", 1, 1024).value_or(1));
  settings.max_model_len = count("max-model-len", llm.max_positions, 1);
  settings.max_num_batched_tokens = count("max-num-batched-tokens", 8192, 1);
  settings.block_tokens = count("block-size", 0, 1);
  settings.draft_tokens = arguments.integer("draft-tokens", 0, 1024).value_or(0);
  settings.draft_layers =
      static_cast<std::int32_t>(arguments.integer("draft-layers", 0, 1024).value_or(0));
  settings.context_parallel =
      static_cast<std::int32_t>(arguments.integer("context-parallel", 1, 1024).value_or(1));
  if (settings.context_parallel > 1) {  // throws if the model cannot be sharded over the ranks
    (void)tensor_shard(llm, out.tensor_parallel, settings.context_parallel);
  }
  settings.keeps_states = !arguments.has("no-prefix-caching");
  return out;
}

int run_show(const Arguments& arguments) {
  arguments.expect_words(2, 2, "model, gpu, method, stack or calibration, and a name");
  const CatalogueKind kind = parse_kind(arguments.words()[0]);
  const std::string& name = arguments.words()[1];
  const std::size_t width = terminal_width();
  std::string text;
  ordered_json document{{"schema", "kvsim.show/1"}, {"kind", plural_of(kind)}};
  switch (kind) {
    case CatalogueKind::kModel: {
      const Llm llm = model_of(name);
      text = llm_text(llm, width);
      document["entry"] = llm_json(llm);
      if (const auto capacity = capacity_of(arguments, llm)) {
        text += capacity_text(llm, *capacity, width);
        document["capacity"] = capacity_json(llm, *capacity);
      }
      break;
    }
    case CatalogueKind::kGpu: {
      const NamedGpu named = gpu_of_user(name);
      if (!named.note.empty()) write_err(fmt::format("kvsim: note: {}\n", named.note));
      text = gpu_text(*named.gpu, width);
      document["entry"] = gpu_json(*named.gpu);
    } break;
    case CatalogueKind::kMethod: {
      const MethodInfo method = describe_method(method_of_user(name));
      text = method_text(method, width);
      document["entry"] = method_json(method);
      break;
    }
    case CatalogueKind::kStack:
      text = stack_text(find_stack(name), width);
      document["entry"] = stack_json(find_stack(name));
      break;
    case CatalogueKind::kCalibration:
      text = calibration_text(find_calibration(name), width);
      document["entry"] = calibration_json(find_calibration(name));
      break;
    case CatalogueKind::kDevice:
      throw InputError{"show: devices are not a catalogue; `kvsim list devices` lists them"};
  }
  write_out(arguments.has("json") ? to_file_text(document) : text);
  return kDone;
}

}  // namespace

Command show_command() {
  return {
      .name = "show",
      .summary = "show one entry of a catalogue, each figure with its source",
      .usage =
          "kvsim show model|gpu|method|stack|calibration NAME [--json]\n"
          "kvsim show model PATH/config.json [--json]\n"
          "kvsim show model NAME --kv-memory SIZE [engine options]",
      .examples =
          "kvsim show gpu A800-80GB-SXM\n"
          "kvsim show model llama-2-7b\n"
          "kvsim show method zeromerge\n"
          "kvsim show model gpt-oss-20b --kv-memory 40GiB --max-model-len 131072\n"
          "kvsim show method h2o+store=fp16",
      .options = {{"json", 0, "", false, "print JSON (schema kvsim.show/1)"},
                  {.name = "kv-memory",
                   .value = "SIZE",
                   .help = "cache memory of a vLLM engine on each GPU: also print its groups of "
                           "layers, its blocks and the tokens that it reports",
                   .group = "a vLLM engine's cache"},
                  {"tp", 0, "N", false, "GPUs that share the model by tensor parallelism (1)"},
                  {"kv-dtype", 0, "FORMAT", false, "format of the cache (the checkpoint's)",
                   Option::Values::kFormats},
                  {"max-model-len", 0, "TOKENS", false, "longest sequence (the model's)"},
                  {"max-num-batched-tokens", 0, "N", false, "tokens per step (8192)"},
                  {"block-size", 0, "N", false, "tokens per block (the engine's default)"},
                  {"draft-tokens", 0, "N", false, "tokens that a speculative step proposes (0)"},
                  {"draft-layers", 0, "N", false, "full layers of the draft head (0)"},
                  {"context-parallel", 0, "N", false,
                   "ranks that share the tokens of full layers (1)"},
                  {"no-prefix-caching", 0, "", false, "keep no states for shared prefixes"}},
      .run = run_show};
}

}  // namespace kvsim
