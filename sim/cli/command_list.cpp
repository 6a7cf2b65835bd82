#include <fmt/format.h>

#include "kernels/device_info.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/describe_devices.hpp"
#include "sim/cli/kinds.hpp"
#include "sim/cli/methods_markdown.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/describe.hpp"
#include "sim/report/describe_text.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

std::string models_table(std::size_t width) {
  Table table{{{"model", Align::kLeft},
               {"parameters"},
               {"layers"},
               {"KV heads"},
               {"cache a token"},
               {"context"}}};
  for (const Llm& llm : builtin_llms()) {
    const AttentionSpec& attention = llm.layers.front().attention;
    table.add_row(
        {llm.name, fmt::format("{:.1f} B", static_cast<double>(parameters(llm)) / 1e9),
         fmt::format("{}", llm.n_layers()),
         attention.is_latent() ? "latent" : fmt::format("{}", attention.n_kv_heads),
         to_text(cache_bytes_per_token(llm, default_kv_dtype(llm, llm.published_dtype)).all_layers),
         with_commas(llm.max_positions)});
  }
  return table.str(width) + "cache a token: all layers, in the format the model computes in\n";
}

std::string gpus_table(std::size_t width) {
  Table table{
      {{"GPU", Align::kLeft}, {"HBM"}, {"usable"}, {"bandwidth"}, {"16-bit dense peak"}, {"SMs"}}};
  for (const Gpu& gpu : builtin_gpus()) {
    table.add_row({gpu.name, to_text(gpu.hbm), to_text(gpu.hbm_usable), to_text(gpu.hbm_bandwidth),
                   to_text(peak_flops(gpu, Dtype::kFp16)), fmt::format("{}", gpu.sms)});
  }
  return table.str(width);
}

std::string methods_text(std::size_t width) {
  Facts facts;
  for (const MethodInfo& method : builtin_methods()) {
    facts.add(method.name, fmt::format("{}; holds {} entries", method.summary, method.size_law));
  }
  return facts.str(width) + "\nT tokens so far, B the budget; `kvsim show method NAME` says more\n";
}

std::string stacks_text(std::size_t width) {
  Facts facts;
  for (const Stack& stack : builtin_stacks()) facts.add(stack.name, stack.summary);
  return facts.str(width);
}

template <class Entries, class Describe>
ordered_json described(const Entries& entries, Describe describe) {
  ordered_json out = ordered_json::array();
  for (const auto& entry : entries) out.push_back(describe(entry));
  return out;
}

ordered_json list_document(CatalogueKind kind) {
  ordered_json out{{"schema", "kvsim.list/1"}, {"kind", plural_of(kind)}};
  switch (kind) {
    case CatalogueKind::kModel:
      out["entries"] = described(builtin_llms(), llm_json);
      break;
    case CatalogueKind::kGpu:
      out["entries"] = described(builtin_gpus(), gpu_json);
      break;
    case CatalogueKind::kMethod:
      out["entries"] = described(builtin_methods(), method_json);
      break;
    case CatalogueKind::kStack:
      out["entries"] = described(builtin_stacks(), stack_json);
      break;
    case CatalogueKind::kCalibration:
      out["entries"] = described(named_calibrations(), calibration_json);
      break;
    case CatalogueKind::kDevice:
      out.update(devices_json(list_devices()));
      break;
  }
  return out;
}

std::string list_text(CatalogueKind kind, std::size_t width) {
  switch (kind) {
    case CatalogueKind::kModel:
      return models_table(width);
    case CatalogueKind::kGpu:
      return gpus_table(width);
    case CatalogueKind::kMethod:
      return methods_text(width);
    case CatalogueKind::kStack:
      return stacks_text(width);
    case CatalogueKind::kCalibration:
      return calibrations_text(width);
    case CatalogueKind::kDevice:
      return devices_text(list_devices(), width);
  }
  return "";
}

int run_list(const Arguments& arguments) {
  arguments.expect_words(1, 1, "models, gpus, methods, stacks or devices");
  const CatalogueKind kind = parse_kind(arguments.words().front());
  if (arguments.has("markdown")) {
    if (kind != CatalogueKind::kMethod || arguments.has("json")) {
      throw InputError{"list: --markdown is of methods, and without --json"};
    }
    write_out(methods_markdown());
    return kDone;
  }
  write_out(arguments.has("json") ? to_file_text(list_document(kind))
                                  : list_text(kind, terminal_width()));
  return kDone;
}

}  // namespace

Command list_command() {
  return {.name = "list",
          .summary =
              "what the catalogues hold: models, GPUs, methods, stacks, calibrations; devices here",
          .usage =
              "kvsim list CATALOGUE [--json | --markdown]\n"
              "  CATALOGUE  models, gpus, methods, stacks, calibrations or devices",
          .examples =
              "kvsim list gpus\n"
              "kvsim list models --json",
          .options = {{"json", 0, "", false, "print JSON (schema kvsim.list/1)"},
                      {"markdown", 0, "", false, "methods: print docs/methods.md"}},
          .run = run_list};
}

}  // namespace kvsim
