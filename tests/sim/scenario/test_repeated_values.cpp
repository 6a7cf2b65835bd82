// Lists with two spellings of one value, which would repeat the same point.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// A scenario with `key` replaced by `value`.
fs::path file_with(std::string_view key, std::string_view value) {
  const fs::path path = test::scratch_folder() / "repeated.json";
  std::string text = "{";
  for (const auto& [name, usual] :
       {std::pair{"model", R"("llama-2-7b")"}, std::pair{"gpu", R"("H100-80GB-SXM")"},
        std::pair{"stack", R"("vllm")"}, std::pair{"dtype", R"("fp16")"},
        std::pair{"kv_dtype", R"("fp16")"}, std::pair{"method", R"("full")"}}) {
    text += fmt::format("\"{}\": {}, ", name, key == name ? value : std::string_view{usual});
  }
  std::ofstream{path} << text + R"("prompt_tokens": 1000, "output_tokens": 2})";
  return path;
}
/// The error message without the file; empty if there is none.
std::string complaint(std::string_view key, std::string_view value) {
  const fs::path path = file_with(key, value);
  try {
    (void)read_scenario(path, {});
  } catch (const InputError& error) {
    const std::string message = error.what();
    const std::string place = path.lexically_normal().string() + ": ";
    return message.starts_with(place) ? message.substr(place.size()) : message;
  }
  return {};
}
std::size_t n_points(std::string_view key, std::string_view value) {
  return read_scenario(file_with(key, value), {}).points.size();
}

TEST_CASE("a list refuses a second spelling of a GPU or a model") {
  CHECK(complaint("gpu", R"(["H100-80GB-SXM", "h100-80gb-sxm"])") ==
        "/gpu/1: \"h100-80gb-sxm\" is given twice; /gpu/0 means the same");
  CHECK(complaint("gpu", R"(["A100-80GB-SXM", "H100-80GB-SXM", "H100 80GB SXM"])") ==
        "/gpu/2: \"H100 80GB SXM\" is given twice; /gpu/1 means the same");
  CHECK(complaint("gpu", R"(["H100-80GB-SXM", "h100"])") ==
        "/gpu/1: \"h100\" is given twice; /gpu/0 means the same");
  CHECK(complaint("model", R"(["llama-2-7b", "Llama-2-7B"])") ==
        "/model/1: \"Llama-2-7B\" is given twice; /model/0 means the same");
  CHECK(complaint("model", R"(["meta-llama/Llama-2-7b-hf", "llama-2-7b"])") ==
        "/model/1: \"llama-2-7b\" is given twice; /model/0 means the same");
  CHECK(n_points("gpu", R"(["H100-80GB-SXM", "H100-80GB-PCIe", "h200"])") == 3);
  CHECK(n_points("model", R"(["llama-2-7b", "Llama-2-13B"])") == 2);
}

TEST_CASE("a list refuses a second spelling of a stack") {
  CHECK(complaint("stack", R"(["vllm@0.19", {"name": "vllm", "version": "0.19"}])") ==
        "/stack/1: an object is given twice; /stack/0 means the same");
  CHECK(complaint("stack", R"(["vllm", {"name": "vllm", "usage": "server"}])") ==
        "/stack/1: an object is given twice; /stack/0 means the same");
  CHECK(complaint("stack", R"([{"name": "vllm", "usage": "llm"}, "ideal", "vllm:llm"])") ==
        "/stack/2: \"vllm:llm\" is given twice; /stack/0 means the same");
  CHECK(n_points("stack", R"(["vllm@0.19", "vllm@0.18", "vllm@0.19:llm"])") == 3);
}

TEST_CASE("a list refuses a second spelling of an element format") {
  CHECK(complaint("dtype", R"(["fp8_e4m3", "bf16", "fp8"])") ==
        "/dtype/2: \"fp8\" is given twice; /dtype/0 means the same");
  CHECK(complaint("kv_dtype", R"(["fp8_e4m3", "fp8"])") ==
        "/kv_dtype/1: \"fp8\" is given twice; /kv_dtype/0 means the same");
}

TEST_CASE("a list refuses a second spelling of a method") {
  CHECK(complaint("method", R"(["full", "Full"])") ==
        "/method/1: \"Full\" is given twice; /method/0 means the same");
  CHECK(complaint("method", R"(["full", {"name": "full"}])") ==
        "/method/1: an object is given twice; /method/0 means the same");
  CHECK(complaint("method", R"([{"name": "h2o", "budget": [0.2, "20 %"]}])") ==
        "/method/0/budget/1: \"20 %\" is given twice; /method/0/budget/0 means the same");
  CHECK(complaint("method", R"([{"name": "h2o", "budget": [0.1, 0.2]},
                                {"name": "H2O", "budget": "20 %"}])") ==
        "/method/1: an object is given twice; /method/0 means the same");
  // The order of the parts of a name, an alias of a parameter, and 4 or 4.0.
  CHECK(complaint("method", R"([{"name": "snapkv+kivi-4", "budget": 0.5},
                                {"name": "kivi-4+snapkv", "budget": 0.5}])") ==
        "/method/1: an object is given twice; /method/0 means the same");
  CHECK(complaint("method", R"([{"name": "streaming-llm", "budget": 0.2, "n_sink": 4},
                                {"name": "streaming-llm", "budget": 0.2, "sinks": 4.0}])") ==
        "/method/1: an object is given twice; /method/0 means the same");
  CHECK(n_points("method", R"(["full", {"name": "h2o", "budget": [0.1, 0.2, "50 entries"]},
                               {"name": "snapkv", "budget": 0.1}])") == 5);
}

/// The error message about `key` of a service, without the file.
std::string service_complaint(std::string_view key, std::string_view value) {
  const fs::path path = test::scratch_folder() / "service.json";
  const std::string requests = R"("requests": {"arrivals": {"kind": "poisson", "rate": 1},
      "count": 5, "prompt_tokens": 100, "output_tokens": 5}, )";
  std::ofstream{path} << fmt::format(
      R"({{"kind": "serve", "model": "llama-2-7b", "gpu": "H100-80GB-SXM", "stack": "vllm",
          {} "{}": {}}})",
      key == "requests" ? "" : requests, key, value);
  try {
    (void)read_scenario(path, {});
  } catch (const InputError& error) {
    return std::string{error.what()}.substr(path.lexically_normal().string().size() + 2);
  }
  return {};
}

TEST_CASE("a list refuses a second spelling of a scheduler, a cluster or a draft") {
  CHECK(service_complaint("scheduler", R"(["vllm-v1", {"name": "vllm-v1"}])") ==
        "/scheduler/1: an object is given twice; /scheduler/0 means the same");
  CHECK(service_complaint("scheduler", R"([{"name": "vllm-v1", "max_num_seqs": [8, 16]},
                                          {"max_num_seqs": 16.0, "name": "vllm-v1"}])") ==
        "/scheduler/1: an object is given twice; /scheduler/0 means the same");
  CHECK(service_complaint("scheduler", R"(["vllm-v1", {"name": "vllm-v1", "max_num_seqs": 8},
                                          "vllm-v0"])")
            .empty());
  CHECK(service_complaint("cluster", R"({"replicas": 2, "link": ["50 GB/s", "50000 MB/s"]})") ==
        "/cluster/link/1: \"50000 MB/s\" is given twice; /cluster/link/0 means the same");
  const auto requests = [](const std::string& rates) {
    return service_complaint("requests", R"({"count": 5, "prompt_tokens": 100, "output_tokens": 5,
        "arrivals": {"kind": "poisson", "rate": )" +
                                             rates + "}}");
  };
  CHECK(requests("[5, 5.0]") == "/requests/arrivals/rate/1: 5.0 is given twice");
  CHECK(requests("[]") ==
        "/requests/arrivals/rate: expected at least one value, got an array of 0");
  CHECK(service_complaint("requests", R"({"file": ["a.jsonl", "./a.jsonl"]})") ==
        "/requests/file/1: \"./a.jsonl\" is given twice; /requests/file/0 means the same");
  CHECK(service_complaint("speculation", R"({"draft": ["llama-3.2-1b", "Llama-3.2-1B"]})") ==
        "/speculation/draft/1: \"Llama-3.2-1B\" is given twice; /speculation/draft/0 means the "
        "same");
}

TEST_CASE("a replay refuses a second spelling of a method") {
  const fs::path path = test::scratch_folder() / "replay.json";
  std::ofstream{path} << R"({"replay": {"trace": "t.safetensors", "methods":
      ["full", {"name": "h2o", "budget": 0.2}, {"name": "H2O", "budget": "20 %"}]}})";
  std::string message;
  try {
    (void)read_scenario(path, {});
  } catch (const InputError& error) {
    message = error.what();
  }
  CHECK(message.ends_with(
      "/replay/methods/2: an object is given twice; /replay/methods/1 means the same"));
}

}  // namespace
}  // namespace kvsim
