// The explorer's functions: equal to the command line, and refused requests.

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/explorer/explore.hpp"
#include "sim/explorer/page/explorer_page.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using test::rel;

ordered_json small(const char* stack) {
  return {{"model", "llama-3.2-1b"},
          {"gpu", "A100-40GB-PCIe"},
          {"stack", stack},
          {"batch", 4},
          {"prompt_tokens", 8192},
          {"output_tokens", 64},
          {"method", {{{"name", "h2o"}, {"budget", 0.25}}, "full"}}};
}

/// The point of a curve at this number of tokens.
ordered_json at(const ordered_json& curve, std::int64_t tokens) {
  for (const ordered_json& one : curve) {
    if (one.at("tokens") == tokens) return one;
  }
  FAIL("no point of the curve at " << tokens);
  return {};
}

TEST_CASE("explorer: a point of the explorer's curve is the run of that length") {
  std::size_t fitting = 0;
  for (const char* stack : {"hf-sdpa", "vllm", "torch-static"}) {
    INFO(stack);
    const ordered_json requested = small(stack);
    const ordered_json run = explore_run(requested.dump());
    const ordered_json reach = explore_reach(requested.dump());
    REQUIRE(run.at("points").size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const ordered_json& point = run.at("points").at(i);
      const ordered_json one = at(reach.at("points").at(i).at("curve"), 8192 + 64);
      REQUIRE(one.at("fits") == point.at("oom").is_null());
      if (!one.at("fits")) {
        // A run ends when memory runs out, but the curve continues.
        CHECK(one.at("peak_hbm_bytes") >= point.at("peak_hbm_bytes"));
        CHECK(one.at("prefill_s").is_null());
        continue;
      }
      ++fitting;
      CHECK(one.at("peak_hbm_bytes") == point.at("peak_hbm_bytes"));
      CHECK(one.at("peak_hbm_bytes_low") == point.at("peak_hbm_bytes_low"));
      CHECK(one.at("peak_hbm_bytes_high") == point.at("peak_hbm_bytes_high"));
      CHECK(one.at("kv_bytes") == point.at("kv_bytes"));
      CHECK(one.at("prefill_s").get<double>() == rel(point.at("prefill_s").get<double>(), 1e-9));
    }
  }
  CHECK(fitting >= 3);
}

TEST_CASE("explorer: the longest context fits and one more token does not") {
  ordered_json requested = small("hf-sdpa");
  requested["method"] = "full";
  requested["batch"] = 16;  // 64 GiB of cache at the model's 131,072 positions
  const ordered_json context =
      explore_reach(requested.dump()).at("points").at(0).at("longest_context");
  CHECK(context.at("limited_by") != "positions");
  const auto longest = static_cast<std::int64_t>(context.at("tokens").get<double>());
  CHECK(context.at("tokens_low").get<double>() <= static_cast<double>(longest));
  CHECK(context.at("tokens_high").get<double>() >= static_cast<double>(longest));
  requested["prompt_tokens"] = longest - 64;
  CHECK(explore_run(requested.dump()).at("points").at(0).at("oom").is_null());
  requested["prompt_tokens"] = longest - 64 + 1;
  CHECK_FALSE(explore_run(requested.dump()).at("points").at(0).at("oom").is_null());
}

TEST_CASE("explorer: the longest context ends at the model's positions if memory holds more") {
  ordered_json requested = small("hf-sdpa");
  requested["batch"] = 1;
  requested["model"] = "llama-2-7b";  // 4,096 positions
  requested["prompt_tokens"] = 1024;
  const ordered_json context =
      explore_reach(requested.dump()).at("points").at(0).at("longest_context");
  CHECK(context.at("tokens") == 4096);
  CHECK(context.at("limited_by") == "positions");
}

TEST_CASE("a longer full cache takes more memory, and only runs that fit have speeds") {
  ordered_json requested = small("hf-sdpa");
  requested["method"] = "full";  // other methods score in smaller chunks if memory is short
  const ordered_json reach = explore_reach(requested.dump());
  for (const ordered_json& point : reach.at("points")) {
    double before = 0;
    REQUIRE(point.at("curve").size() > 10);
    for (const ordered_json& one : point.at("curve")) {
      const double peak = one.at("peak_hbm_bytes").get<double>();
      CHECK(peak >= before);
      before = peak;
      CHECK(one.at("prefill_s").is_null() == !one.at("fits").get<bool>());
      CHECK(one.at("last_step_tok_s").is_null() == !one.at("fits").get<bool>());
    }
  }
}

TEST_CASE("explorer: a point that never fits states the reason") {
  ordered_json requested = small("hf-sdpa");
  requested["model"] = "llama-3.1-405b";
  const ordered_json reach = explore_reach(requested.dump());
  const ordered_json& context = reach.at("points").at(0).at("longest_context");
  CHECK(context.at("tokens") == 0);
  CHECK(context.at("impossible").at("constraint") == "weights");
}

TEST_CASE("explorer: the explorer refuses points that it cannot run and names the place") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      (void)explore_run(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  CHECK(refusal("{") != "none");
  CHECK(refusal("[]") == "explorer.json: expected an object, got an array of 0");
  ordered_json requested = small("hf-sdpa");
  requested["gpu"] = "A100-40GB-PCI";
  CHECK(refusal(requested.dump()).find("/gpu") != std::string::npos);
  requested = small("hf-sdpa");
  requested["batch"] = 0;
  CHECK(refusal(requested.dump()).find("/batch: expected") != std::string::npos);
  requested = small("hf-sdpa");
  requested["kind"] = "serve";
  CHECK(refusal(requested.dump()) != "none");
  requested = small("hf-sdpa");
  requested["extends"] = "other.json";
  CHECK(refusal(requested.dump()).find("/extends: is not for the explorer") != std::string::npos);
  requested = small("hf-sdpa");
  requested["method"] = "kvmerger";
  CHECK(refusal(requested.dump()) != "none");
  requested = small("hf-sdpa");
  requested["batch"] = ordered_json::array();
  for (int i = 1; i <= 16; ++i) requested["batch"].push_back(i);
  CHECK(refusal(requested.dump()).find("32 points") != std::string::npos);
}

TEST_CASE("explorer: the catalogue offers the values that scenarios accept") {
  const ordered_json catalogue = explorer_catalogue();
  for (const char* kind :
       {"models", "gpus", "stacks", "methods", "dtypes", "kv_dtypes", "owners"}) {
    INFO(kind);
    CHECK(catalogue.at(kind).size() > 5);
  }
  // The defaults of each stack and each method, as the page sends them.
  ordered_json requested = small("ideal");
  requested["method"] = "full";
  for (const ordered_json& stack : catalogue.at("stacks")) {
    requested["stack"] = stack.at("name");
    CHECK_NOTHROW((void)explore_run(requested.dump()));
  }
}

TEST_CASE("explorer: kvsim explorer writes the page or reports the missing part") {
  const std::filesystem::path folder = test::scratch_folder();
  std::filesystem::remove(folder / "explorer.html");
  const test::Outcome done = test::run_kvsim({"explorer", "-o", "explorer.html"}, folder);
  const bool has_core = !explorer_core().empty();
  CHECK(done.status == (has_core ? 0 : 2));
  CHECK(std::filesystem::exists(folder / "explorer.html") == has_core);
  if (!has_core) CHECK(done.err.find("package emscripten") != std::string::npos);
  CHECK(test::run_kvsim({"explorer"}, folder).status == 2);
}

TEST_CASE("explorer: a build with the core writes one page that loads no other file") {
  if (explorer_core().empty()) {
    fmt::print("KVSIM-SKIPPED: this build has no explorer core: KVSIM_EXPLORER is off\n");
    return;
  }
  const std::string page = explorer_page();
  CHECK(page.find("{{") == std::string::npos);
  // No tag loads a resource. In scripts, "src=" is part of the chart library's drawing code.
  std::string tags = page;
  for (std::size_t at = 0; (at = tags.find("<script", at)) != std::string::npos;) {
    const std::size_t body = tags.find('>', at) + 1;
    const std::size_t end = tags.find("</script>", body);
    REQUIRE(end != std::string::npos);
    tags.erase(body, end - body);
    at = body;
  }
  CHECK(tags.size() < page.size() / 10);  // most of it is scripts
  CHECK(tags.find("src=") == std::string::npos);
  CHECK(tags.find("<link") == std::string::npos);
  CHECK(page.find("Content-Security-Policy") != std::string::npos);
  CHECK(page == explorer_page());
}

}  // namespace
}  // namespace kvsim
