// Availability of methods in software: rows of the catalogue, and the note for a stack without the
// method.

#include "models/methods/method.hpp"
#include "models/methods/resolve/availability.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/points/point_notes.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;

TEST_CASE("every row lists known software at most once") {
  std::size_t with_software = 0;
  for (const MethodInfo& method : builtin_methods()) {
    INFO(method.name);
    const std::vector<Availability> available = availability_of(method.name);
    with_software += available.empty() ? 0U : 1U;
    for (std::size_t i = 0; i < available.size(); ++i) {
      CHECK_FALSE(software_title(available[i].software).empty());
      for (std::size_t j = 0; j < i; ++j) CHECK(available[i].software != available[j].software);
    }
  }
  CHECK(with_software > builtin_methods().size() / 2);
}

TEST_CASE("availability is printed as titles with and without options") {
  CHECK(availability_text(availability_of("fp8-e5m2")) ==
        "vLLM (0.6.6: --kv-cache-dtype fp8_e5m2), SGLang (--kv-cache-dtype fp8_e5m2), LMDeploy "
        "PyTorch engine (0.14: --quant-policy fp8_e5m2)");
  CHECK(availability_titles(availability_of("knorm")) == "kvpress");
  CHECK(availability_text(availability_of("oracle-step")) == "none known");
  CHECK(availability_versions(availability_of("nvfp4")) == "vLLM 0.30, SGLang, TensorRT-LLM");
  CHECK(availability_versions(availability_of("kvarn-k4v4")) == "vLLM (main)");
  CHECK(availability_versions(availability_of("oracle-step")) == "none known");
  // SmoothQuant's released code quantizes weights and activations, not a cache.
  CHECK(availability_of("smoothquant-kv").empty());
  CHECK(availability_of("h2o+store=int8").empty());  // not in any released software
  CHECK_THROWS_AS((void)availability_of("snapkw"), InputError);
}

TEST_CASE("a row gives the version and the option of a method") {
  const auto check = [](const char* as, const char* version, const char* option, bool released) {
    INFO(as);
    const AvailabilityParts parts = parts_of({"vllm", as});
    CHECK(parts.version == version);
    CHECK(parts.option == option);
    CHECK(parts.is_released() == released);
  };
  check("0.6.4: --kv-cache-dtype fp8_e4m3", "0.6.4", "--kv-cache-dtype fp8_e4m3", true);
  check("main: --kv-cache-dtype k", "main", "--kv-cache-dtype k", false);
  check("pull request: --kv-cache-dtype k", "pull request", "--kv-cache-dtype k", false);
  check("--kv-cache-dtype fp8_e4m3", "", "--kv-cache-dtype fp8_e4m3", true);
  check("config: page, SM100", "", "config: page, SM100", true);  // a key, not a version
  check("", "", "", true);
}

TEST_CASE("a stack whose version does not have the method is named") {
  const auto note = [](const char* method, const char* stack) {
    return missing_in_stack(method, find_stack(stack)).value_or("");
  };
  CHECK(note("nvfp4", "vllm@0.11") ==
        "vLLM 0.11 has no nvfp4; numbers assume that it is built in (it is in vLLM since 0.30)");
  CHECK(note("nvfp4", "vllm").empty());
  CHECK(note("nvfp4", "vllm@0.30").empty());
  CHECK(note("fp8-per-token-head", "vllm@0.23").empty());
  CHECK(has(note("fp8-per-token-head", "vllm@0.22"), "vLLM 0.22 has no fp8-per-token-head"));
  CHECK(note("full", "vllm@0.8").empty());
  CHECK(has(note("kvarn-k4v4", "vllm"),
            " has no kvarn-k4v4; numbers assume that it is built in (it is in vLLM's main branch, "
            "but not in a release)"));
  CHECK(has(note("oscar", "vllm@0.30"),
            "numbers assume that it is built in (it is in a pull request of vLLM)"));
  CHECK(has(note("kvarn-k4v4", "sglang"), "(available in vLLM (main))"));
}

TEST_CASE("a stack whose software does not have the method is named") {
  const auto note = [](const char* method, const char* stack) {
    return missing_in_stack(method, find_stack(stack)).value_or("");
  };
  CHECK(note("snapkv", "vllm") ==
        "vLLM has no snapkv; numbers assume that it is built in (available in kvpress, "
        "research code)");
  CHECK(has(note("snapkv", "sglang"), "SGLang has no snapkv"));
  CHECK(has(note("snapkv", "trtllm"), "TensorRT-LLM has no snapkv"));
  CHECK(has(note("h2o+store=int8", "hf-sdpa"), "no released software is known to have it"));
  CHECK(note("full", "vllm").empty());
  CHECK(note("fp8-e4m3", "vllm").empty());
  // LMDeploy's profile describes TurboMind, which rejects FP8; its PyTorch engine supports it.
  CHECK(has(note("fp8-e4m3", "lmdeploy"), "LMDeploy TurboMind has no fp8-e4m3"));
  CHECK(has(note("fp8-e4m3", "lmdeploy"), "LMDeploy PyTorch engine"));
  CHECK(note("lmdeploy-int8", "lmdeploy").empty());
  CHECK(has(note("quest", "sglang"), "SGLang has no quest"));
  CHECK(note("snapkv", "hf-sdpa").empty());  // kvpress runs on transformers
  CHECK(note("snapkv", "ideal").empty());    // not a software product
}

}  // namespace
}  // namespace kvsim
