// kvsim validate e2e: a decode loop of the project's kernels, compared with its reference in the
// simulator and with the prediction on a GPU.

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "kernels/device/device_info.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/cli/validate/e2e_report.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
namespace {

constexpr const char* kModel = "llama-3-8b";

/// Default sizes, and the maximum sizes on the command line.
struct Sizes {
  std::int64_t layers, budget, prompt, output, max_layers, max_batch, max_prompt, max_output;
};
constexpr Sizes kToy{2, 24, 71, 4, 8, 8, 512, 64};
constexpr Sizes kReal{32, 1024, 8192, 64, 32, 1024, kMaxE2eTokens, 1024};

E2eRequest request_of(const Arguments& arguments, const Sizes& sizes) {
  const auto integer = [&](const char* name, std::int64_t max, std::int64_t otherwise) {
    return arguments.integer(name, 1, max).value_or(otherwise);
  };
  E2eRequest request;
  request.method = arguments.value("method").value_or("full");
  if (request.method == "full" && arguments.has("budget")) {
    throw InputError{"--budget: method full keeps every entry; choose another or leave it out"};
  }
  request.budget = integer("budget", kMaxE2eTokens, sizes.budget);
  request.batch = integer("batch", sizes.max_batch, 1);
  request.prompt = integer("prompt", sizes.max_prompt, sizes.prompt);
  request.output = integer("output", sizes.max_output, sizes.output);
  request.seed =
      static_cast<std::uint64_t>(arguments.integer("seed", 0, std::int64_t{1} << 53).value_or(0));
  return request;
}

E2eScore simulate(const Arguments& arguments) {
  E2eScore score;
  score.device = "cuda-sim";
  score.request = request_of(arguments, kToy);
  score.plan =
      plan_e2e(toy_llm(arguments.integer("layers", 1, kToy.max_layers).value_or(kToy.layers)),
               Dtype::kFp32, score.request);
  score.check = check_loop(score.plan);
  score.notes.emplace_back(
      "the simulator runs a toy model in fp32, with products from the plain kernel: this checks "
      "that the loop follows its method and that its bytes are the model's; it measures no time");
  return score;
}

/// The catalogue GPU with this driver name; null if there is none.
const Gpu* catalogue_gpu(std::string name) {
  if (name.starts_with("NVIDIA ")) name.erase(0, 7);
  try {
    return &find_gpu(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

E2eScore measure(const Arguments& arguments, const DeviceList& list) {
  if (list.devices.empty()) {
    throw InputError{fmt::format(
        "{}: looked for a CUDA driver and a device through the CUDA runtime: {}; build with nvcc "
        "on "
        "a machine with an NVIDIA GPU, or use --device sim, which needs none and measures no times",
        arguments.value("device") ? "--device cuda" : "no --device was given", list.problem)};
  }
  const DeviceInfo& device = list.devices.front();
  E2eScore score;
  score.device = device.name;
  score.driver = list.driver;
  score.request = request_of(arguments, kReal);
  const Llm& llm = find_llm(kModel);
  score.plan = plan_e2e(
      with_layers(llm, arguments.integer("layers", 1, kReal.max_layers).value_or(kReal.layers)),
      Dtype::kBf16, score.request);
  // Enough attention blocks for two per multiprocessor, in splits of 64 to 512 entries.
  kernels::LoopSpec& loop = score.plan.loop;
  const std::int64_t blocks = 2 * std::max(device.sms, 1);
  const std::int64_t split = loop.capacity() * loop.cache_rows() / blocks / 64 * 64;
  loop.entries_per_split = std::clamp<std::int64_t>(split, 64, 512);
  const std::int64_t rounds = arguments.integer("rounds", 1, 1000).value_or(4);
  try {
    score.measured = kernels::measure_loop(loop, rounds, !arguments.has("no-longest"));
  } catch (const std::runtime_error& error) {  // not enough memory for these sizes, or no cuBLAS
    throw InputError{
        fmt::format("--device cuda: the loop did not run on {}: {}", device.name, error.what())};
  }
  if (const Gpu* gpu = catalogue_gpu(device.name)) {
    score.predicted = predict_e2e(score.plan, *gpu);
    score.notes.push_back(
        fmt::format("predicted: {} with stack kvsim-kernels, whose sources state which constants "
                    "were never measured (kvsim show stack kvsim-kernels)",
                    gpu->name));
  } else {
    score.notes.push_back(fmt::format(
        "no prediction: the catalogue has no GPU called \"{}\" (kvsim list gpus)", device.name));
  }
  score.notes.emplace_back(
      "random weights and tokens; the prompt's cache is random too, prefill is not computed");
  score.notes.emplace_back(
      "peak_hbm is the memory in use on the device by any process, as reported by the driver: "
      "nothing else should run on it");
  if (!score.measured->longest && loop.method != kernels::LoopMethod::kFull) {
    score.notes.emplace_back(
        "longest_sequence: the budget bounds the cache, so there is no longest length");
  }
  return score;
}

}  // namespace

int run_validate_e2e(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  const std::string device = arguments.value("device").value_or("cuda");
  if (device != "cuda" && device != "sim") {
    throw InputError{"--device", "sim or cuda", fmt::format("\"{}\"", device)};
  }
  const E2eScore score = device == "sim" ? simulate(arguments) : measure(arguments, list_devices());
  const std::string document = to_file_text(e2e_json(score));
  if (const auto out = arguments.value("out")) write_file_atomically(*out, document);
  write_out(arguments.has("json") ? document : e2e_text(score, terminal_width()));
  return score.pass() ? kDone : kDoesNotFit;
}

}  // namespace kvsim
