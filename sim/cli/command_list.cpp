#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "kernels/device/device_info.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/methods_markdown.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/kinds.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/describe_devices.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Whether `name` contains `part`, ignoring case and separators. Numbers match as a whole: "qwen3"
/// is in "qwen-3.5", not in "qwen-32b".
bool has_part(std::string_view name, std::string_view part) {
  const std::string wanted = squeezed_name(part);
  for (std::size_t from = 0; from < name.size(); ++from) {
    std::size_t at = from;
    std::size_t n_equal = 0;
    for (; at < name.size() && n_equal < wanted.size(); ++at) {
      const std::string c = squeezed_name(name.substr(at, 1));
      if (!c.empty() && c.front() != wanted[n_equal]) break;
      n_equal += c.size();
    }
    if (n_equal < wanted.size()) continue;
    const bool is_cut =
        !wanted.empty() && is_digit(wanted.back()) && at < name.size() && is_digit(name[at]);
    if (!is_cut) return true;
  }
  return false;
}

/// The entries with a name in `names(entry)` that contains `part`. Errors: InputError if there are
/// none.
template <class Entry, class Names>
std::vector<Entry> matching(const std::vector<Entry>& entries, std::string_view part,
                            CatalogueKind kind, Names names) {
  std::vector<Entry> out;
  for (const Entry& entry : entries) {
    const std::vector<std::string> words = names(entry);
    if (std::any_of(words.begin(), words.end(),
                    [&](const std::string& word) { return has_part(word, part); })) {
      out.push_back(entry);
    }
  }
  if (out.empty()) {
    throw InputError{fmt::format("list {0}: no name contains \"{1}\"; `kvsim list {0}` lists all",
                                 plural_of(kind), part)};
  }
  return out;
}

std::vector<Llm> models_with(std::string_view part) {
  return matching(builtin_llms(), part, CatalogueKind::kModel, [](const Llm& llm) {
    std::vector<std::string> names = llm_aliases(llm.name);
    names.push_back(llm.name);
    return names;
  });
}

std::vector<Gpu> gpus_with(std::string_view part) {
  return matching(builtin_gpus(), part, CatalogueKind::kGpu, [](const Gpu& gpu) {
    std::vector<std::string> names = gpu.aliases;
    names.push_back(gpu.name);
    names.push_back(gpu.generation);
    return names;
  });
}

std::vector<MethodInfo> methods_with(std::string_view part) {
  return matching(builtin_methods(), part, CatalogueKind::kMethod,
                  [](const MethodInfo& method) { return std::vector<std::string>{method.name}; });
}

std::vector<Stack> stacks_with(std::string_view part) {
  return matching(builtin_stacks(), part, CatalogueKind::kStack,
                  [](const Stack& stack) { return std::vector<std::string>{stack.name}; });
}

std::vector<NamedCalibration> calibrations_with(std::string_view part) {
  return matching(
      named_calibrations(), part, CatalogueKind::kCalibration,
      [](const NamedCalibration& named) { return std::vector<std::string>{named.name}; });
}

std::string models_table(const std::vector<Llm>& llms, std::size_t width) {
  Table table{{{"model", Align::kLeft},
               {"parameters"},
               {"layers"},
               {"KV heads"},
               {"cache/token"},
               {"context"}}};
  for (const Llm& llm : llms) {
    // Use the first layer with attention: others may have a recurrent state or only experts.
    const auto attends =
        std::find_if(llm.layers.begin(), llm.layers.end(),
                     [](const LayerSpec& layer) { return layer.attention.n_heads > 0; });
    const LayerSpec& layer = attends == llm.layers.end() ? llm.layers.front() : *attends;
    table.add_row(
        {llm.name, fmt::format("{:.1f} B", static_cast<double>(parameters(llm)) / 1e9),
         fmt::format("{}", llm.n_layers()),
         caches_latents(layer) ? "latent" : fmt::format("{}", layer.attention.n_kv_heads),
         to_text(cache_bytes_per_token(llm, default_kv_dtype(llm, llm.published_dtype)).all_layers),
         with_commas(llm.max_positions)});
  }
  return table.str(width) + "cache/token: all layers, in the format of the model's computation\n";
}

std::string gpus_table(const std::vector<Gpu>& gpus, std::size_t width) {
  Table table{
      {{"GPU", Align::kLeft}, {"HBM"}, {"usable"}, {"bandwidth"}, {"16-bit dense peak"}, {"SMs"}}};
  for (const Gpu& gpu : gpus) {
    table.add_row({gpu.name, to_text(gpu.hbm), to_text(gpu.hbm_usable), to_text(gpu.hbm_bandwidth),
                   to_text(peak_flops(gpu, Dtype::kFp16)), fmt::format("{}", gpu.sms)});
  }
  return table.str(width);
}

std::string methods_text(const std::vector<MethodInfo>& methods, std::size_t width) {
  Facts facts;
  for (const MethodInfo& method : methods) {
    facts.add(method.name,
              fmt::format("{}; holds {} entries; available in {}", method.summary, method.size_law,
                          availability_titles(availability_of(method.name))));
  }
  return facts.str(width) +
         "\nT: tokens so far, B: the budget; `kvsim show method NAME` has the details\n";
}

std::string stacks_text(const std::vector<Stack>& stacks, std::size_t width) {
  Facts facts;
  for (const Stack& stack : stacks) facts.add(stack.name, stack.summary);
  return facts.str(width);
}

template <class Entries, class Describe>
ordered_json described(const Entries& entries, Describe describe) {
  ordered_json out = ordered_json::array();
  for (const auto& entry : entries) out.push_back(describe(entry));
  return out;
}

ordered_json list_document(CatalogueKind kind, std::string_view part) {
  ordered_json out{{"schema", "kvsim.list/1"}, {"kind", plural_of(kind)}};
  switch (kind) {
    case CatalogueKind::kModel:
      out["entries"] = described(models_with(part), llm_json);
      break;
    case CatalogueKind::kGpu:
      out["entries"] = described(gpus_with(part), gpu_json);
      break;
    case CatalogueKind::kMethod:
      out["entries"] = described(methods_with(part), method_json);
      break;
    case CatalogueKind::kStack:
      out["entries"] = described(stacks_with(part), stack_json);
      break;
    case CatalogueKind::kCalibration:
      out["entries"] = described(calibrations_with(part), calibration_json);
      break;
    case CatalogueKind::kDevice:
      out.update(devices_json(list_devices()));
      break;
  }
  return out;
}

std::string list_text(CatalogueKind kind, std::string_view part, std::size_t width) {
  switch (kind) {
    case CatalogueKind::kModel:
      return models_table(models_with(part), width);
    case CatalogueKind::kGpu:
      return gpus_table(gpus_with(part), width);
    case CatalogueKind::kMethod:
      return methods_text(methods_with(part), width);
    case CatalogueKind::kStack:
      return stacks_text(stacks_with(part), width);
    case CatalogueKind::kCalibration:
      return calibrations_text(calibrations_with(part), width);
    case CatalogueKind::kDevice:
      return devices_text(list_devices(), width);
  }
  return "";
}

int run_list(const Arguments& arguments) {
  arguments.expect_words(1, 2,
                         "a catalogue (models, gpus, methods, stacks, calibrations, devices) and "
                         "at most one part of a name");
  const CatalogueKind kind = parse_kind(arguments.words().front());
  const std::string part = arguments.words().size() > 1 ? arguments.words()[1] : "";
  if (kind == CatalogueKind::kDevice && !part.empty()) {
    throw InputError{"list devices: expected no part of a name, got \"" + part + "\""};
  }
  if (arguments.has("markdown")) {
    if (kind != CatalogueKind::kMethod || arguments.has("json") || !part.empty()) {
      throw InputError{"list: --markdown is only for all methods, without --json"};
    }
    write_out(methods_markdown());
    return kDone;
  }
  write_out(arguments.has("json") ? to_file_text(list_document(kind, part))
                                  : list_text(kind, part, terminal_width()));
  return kDone;
}

}  // namespace

Command list_command() {
  return {.name = "list",
          .summary = "list the catalogues: models, GPUs, methods, stacks, calibrations, devices",
          .usage =
              "kvsim list CATALOGUE [PART] [--json | --markdown]\n"
              "  CATALOGUE  models, gpus, methods, stacks, calibrations or devices\n"
              "  PART       part of the names to list; case, \"_\" and blanks do not matter",
          .examples =
              "kvsim list gpus\n"
              "kvsim list models qwen3\n"
              "kvsim list models --json",
          .options = {{"json", 0, "", false, "print JSON (schema kvsim.list/1)"},
                      {"markdown", 0, "", false, "methods: print docs/methods.md"}},
          .run = run_list};
}

}  // namespace kvsim
