#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/json/field.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/methods/settle/named.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/options/kinds.hpp"
#include "sim/cli/options/model_argument.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A catalogue name, or the path of a Hugging Face config.json or of the folder that holds one.
Llm model_of(const std::string& name) {
  const std::optional<fs::path> path = model_file(name, "show model");
  if (!path) return find_llm(name);
  const fs::path folder = fs::absolute(*path).lexically_normal().parent_path().filename();
  return read_hf_config_file(*path, folder.empty() ? "model" : folder.string());
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
      break;
    }
    case CatalogueKind::kGpu: {
      const NamedGpu named = gpu_of_user(name);
      if (!named.note.empty()) write_err(fmt::format("kvsim: note: {}\n", named.note));
      text = gpu_text(*named.gpu, width);
      document["entry"] = gpu_json(*named.gpu);
    } break;
    case CatalogueKind::kMethod:
      text = method_text(describe_method(canonical_method(name)), width);
      document["entry"] = method_json(describe_method(canonical_method(name)));
      break;
    case CatalogueKind::kStack:
      text = stack_text(find_stack(name), width);
      document["entry"] = stack_json(find_stack(name));
      break;
    case CatalogueKind::kCalibration:
      text = calibration_text(find_calibration(name), width);
      document["entry"] = calibration_json(find_calibration(name));
      break;
    case CatalogueKind::kDevice:
      throw InputError{"show: devices are no catalogue; `kvsim list devices` says all of them"};
  }
  write_out(arguments.has("json") ? to_file_text(document) : text);
  return kDone;
}

}  // namespace

Command show_command() {
  return {.name = "show",
          .summary = "show one entry of a catalogue, every figure with its source",
          .usage =
              "kvsim show model|gpu|method|stack|calibration NAME [--json]\n"
              "kvsim show model PATH/config.json [--json]",
          .examples =
              "kvsim show gpu A800-80GB-SXM\n"
              "kvsim show model llama-2-7b\n"
              "kvsim show method zeromerge\n"
              "kvsim show method h2o+store=fp16",
          .options = {{"json", 0, "", false, "print JSON (schema kvsim.show/1)"}},
          .run = run_show};
}

}  // namespace kvsim
