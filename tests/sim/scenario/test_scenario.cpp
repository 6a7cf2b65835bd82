#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/fingerprint.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/engine_field.hpp"
#include "sim/scenario/fields/keys.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/fields/schema.hpp"
#include "sim/scenario/points/measured_points.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "tests/support/check.hpp"
#include "tests/support/json_schema.hpp"
#include "tests/support/scratch.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::rel;

/// A folder of scenario files, new for each test case.
class Files {
 public:
  explicit Files(const std::string& name) : folder_{test::scratch_folder() / name} {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  fs::path write(const std::string& name, std::string_view text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream{path} << text;
    return path;
  }
  [[nodiscard]] const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

std::string complaint_of(const fs::path& file, const std::vector<Override>& overrides = {}) {
  try {
    (void)read_scenario(file, overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

constexpr std::string_view kSmall = R"({
  // a comment
  "model": "llama-2-7b", "gpu": "A100-80GB-SXM", "dtype": "fp16",
  "prompt_tokens": 100, "output_tokens": 10
})";

/// kSmall with other members: `extra` starts with a comma or is empty.
std::string small(std::string_view extra) {
  return fmt::format(R"({{"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "dtype": "fp16",
    "prompt_tokens": 100, "output_tokens": 10{}}})",
                     extra);
}

std::vector<std::string> labels(const Scenario& scenario) {
  std::vector<std::string> out;
  for (const ScenarioPoint& point : scenario.points) out.push_back(point.label);
  return out;
}

TEST_CASE("a scenario of one point with its defaults") {
  const Files files{"one"};
  const Scenario scenario = read_scenario(files.write("tiny.json", kSmall), {});
  CHECK(scenario.name == "tiny");
  CHECK(scenario.title == "tiny");
  CHECK(scenario.kind == "static");
  REQUIRE(scenario.points.size() == 1);
  const ScenarioPoint& point = scenario.points[0];
  CHECK(point.spec.llm->name == "llama-2-7b");
  CHECK(point.spec.stack->name == "ideal");
  CHECK(point.spec.method->name() == "full");
  CHECK(point.spec.kv_dtype == Dtype::kFp16);
  CHECK(point.spec.batch == 1);
  CHECK(point.keys.at("budget").is_null());
  // 110 tokens x 2 x 32 layers x 4096 x 2 B.
  CHECK(point.kv_bytes_wanted == Bytes{110LL * 2 * 32 * 4096 * 2});
}

TEST_CASE("required cache counts a prompt's rows separately if the format stores them separately") {
  const Files files{"wanted"};
  for (const char* method : {"think", "gear"}) {
    INFO(method);
    const Scenario scenario =
        read_scenario(files.write("m.json", fmt::format(R"({{"model": "llama-2-7b", "gpu": "H200",
            "prompt_tokens": 400, "output_tokens": 100, "method": "{}"}})",
                                                        method)),
                      {});
    const ScenarioPoint& point = scenario.points.front();
    Bytes law;
    for (std::int32_t layer = 0; layer < 32; ++layer) {
      const CacheBytes rows = point.spec.method->rows_bytes(
          layer, {.n_heads = 32, .n_kv_heads = 32, .head_dim = 128}, Dtype::kFp16, 400, 500);
      law += rows.kv + rows.side;
    }
    CHECK(point.kv_bytes_wanted == law);
  }
}

TEST_CASE("quantised weights do not quantise the cache unless kv_dtype requests it") {
  const Files files{"kv-dtype"};
  const auto first = [&](std::string_view model, std::string_view extra) {
    return read_scenario(
               files.write("k.json",
                           fmt::format(R"({{"model": "{}", "gpu": "H200", "prompt_tokens": 100,
                                           "output_tokens": 10{}}})",
                                       model, extra)),
               {})
        .points.at(0);
  };
  CHECK(first("gpt-oss-20b", "").spec.weight_dtype == Dtype::kFp4);
  CHECK(first("gpt-oss-20b", "").spec.kv_dtype == Dtype::kBf16);
  CHECK(first("gpt-oss-20b", "").keys.at("kv_dtype") == "bf16");
  CHECK(first("deepseek-v3", "").spec.kv_dtype == Dtype::kBf16);
  CHECK(first("llama-2-7b", R"(, "dtype": "int4")").spec.kv_dtype == Dtype::kFp16);
  CHECK(first("llama-2-7b", R"(, "dtype": "fp32")").spec.kv_dtype == Dtype::kFp32);
  CHECK(first("llama-2-7b", R"(, "dtype": "int4", "kv_dtype": "int4")").spec.kv_dtype ==
        Dtype::kInt4);
  files.write("own/config.json",
              R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 704,
                  "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1000,
                  "max_position_embeddings": 2048, "torch_dtype": "float16",
                  "quantization_config": {"quant_method": "awq", "bits": 4}})");
  const auto own = read_scenario(
      files.write("own.json", R"({"model": {"config": "own/config.json"}, "gpu": "H200",
                                  "prompt_tokens": 100, "output_tokens": 10})"),
      {});
  CHECK(own.points.at(0).spec.weight_dtype == Dtype::kInt4);
  CHECK(own.points.at(0).spec.kv_dtype == Dtype::kFp16);
}

TEST_CASE("lists make the product of their values, the last key fastest") {
  const Files files{"product"};
  const Scenario scenario =
      read_scenario(files.write("p.json", small(R"(, "batch": [1, 2], "kv_dtype": ["fp16", "fp32"],
        "method": ["full", {"name": "h2o", "budget": [0.5, "20 entries"]}])")),
                    {});
  CHECK(labels(scenario) ==
        std::vector<std::string>{
            "full, cache fp16, batch 1", "h2o budget 50 %, cache fp16, batch 1",
            "h2o budget 20, cache fp16, batch 1", "full, cache fp16, batch 2",
            "h2o budget 50 %, cache fp16, batch 2", "h2o budget 20, cache fp16, batch 2",
            "full, cache fp32, batch 1", "h2o budget 50 %, cache fp32, batch 1",
            "h2o budget 20, cache fp32, batch 1", "full, cache fp32, batch 2",
            "h2o budget 50 %, cache fp32, batch 2", "h2o budget 20, cache fp32, batch 2"});
  CHECK(scenario.points[1].keys.at("budget") == 0.5);
  CHECK(scenario.points[2].keys.at("budget") == 20);
  CHECK(scenario.points[2].keys.at("method") == "h2o");
}

TEST_CASE("points inherit the scenario's keys, may override them, and may contain lists") {
  const Files files{"points"};
  const Scenario scenario = read_scenario(files.write("p.json", small(R"(, "batch": [3, 4],
      "points": [{"batch": 1}, {"prompt_tokens": [200, 300]}])")),
                                          {});
  CHECK(labels(scenario) == std::vector<std::string>{"batch 1, prompt 100", "batch 3, prompt 200",
                                                     "batch 3, prompt 300", "batch 4, prompt 200",
                                                     "batch 4, prompt 300"});
}

TEST_CASE("no two points have the same name") {
  const Files files{"labels"};
  const auto of = [&](std::string_view points) {
    return labels(read_scenario(
        files.write("l.json", small(fmt::format(R"(, "points": [{}])", points))), {}));
  };
  using Names = std::vector<std::string>;
  CHECK(of(R"({}, {"memory": {"hbm": "160 GiB"}}, {"memory": {"usable_hbm": "70 GiB"}})") ==
        Names{"full", "hbm 160 GiB", "usable hbm 70 GiB"});
  CHECK(of(R"({"batch": 2, "memory": {"hbm": "96 GiB", "usable_hbm": "90 GiB"}}, {"batch": 2})") ==
        Names{"hbm 96 GiB usable hbm 90 GiB", "full"});
  CHECK(of(R"({}, {"memory": {}}, {"batch": 1})") == Names{"full", "full (2)", "full (3)"});
  CHECK(of(R"({"method": {"name": "h2o", "budget": [0.2, 0.200001]}})") ==
        Names{"h2o budget 20 %", "h2o budget 20 % (2)"});
}

TEST_CASE(
    "extends merges key by key, the nearer file takes precedence, and paths keep their meaning") {
  const Files files{"extends"};
  files.write("base/config.json", R"({"model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
    "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": false, "rope_theta": 10000.0})");
  files.write("base/base.json", R"({"model": {"config": "config.json", "name": "own"},
    "gpu": "A100-80GB-SXM", "dtype": "fp16", "batch": 7, "memory": {"usable_hbm": "40 GiB"},
    "method": {"name": "h2o", "budget": "20 entries"}, "title": "base"})");
  files.write("lengths.json", R"({"prompt_tokens": 100, "output_tokens": 10, "batch": 8})");
  const Scenario scenario =
      read_scenario(files.write("top.json", R"({"extends": ["base/base.json", "lengths.json"],
        "method": {"name": "streaming-llm"}, "title": null})"),
                    {});
  REQUIRE(scenario.points.size() == 1);
  CHECK(scenario.title == "top");  // null removes the inherited title
  const StaticSpec& spec = scenario.points[0].spec;
  CHECK(spec.llm->name == "own");
  CHECK(spec.llm->n_layers() == 2);
  CHECK(spec.batch == 8);
  CHECK(spec.gpu->hbm_usable == 40_GiB);
  CHECK(find_gpu("A100-80GB-SXM").hbm_usable != 40_GiB);
  // A method is one value: the budget of h2o is not inherited by streaming-llm.
  CHECK(scenario.points[0].keys.at("method") == "streaming-llm");
  CHECK(scenario.points[0].keys.at("budget").is_null());
  CHECK_FALSE(scenario.echo.contains("extends"));
  CHECK(scenario.echo.at("model").at("config") == "base/config.json");
}

TEST_CASE("a file may extend one above its folder") {
  const Files files{"above"};
  files.write("base.json", kSmall);
  const auto top = files.write("deep/er/top.json", R"({"extends": "../../base.json", "batch": 2})");
  CHECK(read_scenario(top, {}).points.at(0).spec.batch == 2);
}

TEST_CASE("an override takes precedence over every file and may create missing keys") {
  const Files files{"override"};
  const auto file = files.write("s.json", small(R"(, "batch": 2, "method": ["full", "h2o"])"));
  CHECK(read_scenario(file, {{"/batch", "8"}}).points.at(0).spec.batch == 8);
  CHECK(read_scenario(file, {{"/batch", "8"}, {"/batch", "9"}}).points.at(0).spec.batch == 9);
  CHECK(read_scenario(file, {{"/gpu", "h200-141gb-sxm"}}).points.at(0).spec.gpu->name ==
        "H200-141GB-SXM");
  CHECK(read_scenario(file, {{"/memory/usable_hbm", "40 GiB"}}).points.at(0).spec.gpu->hbm_usable ==
        40_GiB);
  CHECK(read_scenario(file, {{"/method/1", "{\"name\": \"h2o\", \"budget\": 0.5}"}})
            .points.at(1)
            .keys.at("budget") == 0.5);
  CHECK(read_scenario(file, {{"/method/-", "streaming-llm"}}).points.size() == 3);
  // A name instead of an object: "h2o" is {"name": "h2o"}.
  CHECK(read_scenario(file, {{"/method/1/budget", "0.3"}}).points.at(1).keys.at("budget") == 0.3);
  const auto one = files.write("one.json", small(R"(, "method": "h2o", "stack": "vllm")"));
  const Scenario named =
      read_scenario(one, {{"/method/budget", "0.3"}, {"/stack/version", "\"0.19\""}});
  CHECK(named.points.at(0).keys.at("budget") == 0.3);
  CHECK(named.points.at(0).spec.stack->version == "0.19");
}

TEST_CASE("an invalid override reports the reason") {
  const Files files{"bad-override"};
  const auto file = files.write("s.json", small(R"(, "method": ["full"])"));
  const auto complaint = [&](const std::string& pointer, const std::string& value) {
    return complaint_of(file, {{pointer, value}});
  };
  CHECK(
      complaint("batch", "1") ==
      "--set batch: expected a JSON pointer that starts with \"/\", such as /batch, got \"batch\"");
  CHECK(complaint("/model/x", "1") == "--set /model/x: /model is a string and has no members");
  CHECK(complaint("/method/3", "full") ==
        "--set /method/3: /method is a list of 1: expected an index in [0, 0] or \"-\", got \"3\"");
  CHECK(
      complaint("/batc", "1").find("(after --set): /batc: unknown key; did you mean \"batch\"?") !=
      std::string::npos);
  CHECK(complaint("/batch", "0")
            .ends_with("s.json (after --set): /batch: expected an integer in [1, 1048576], got 0"));
  CHECK(complaint("/method", "[\"full\"").starts_with("--set /method: not valid JSON"));
  CHECK(complaint("/a~2b", "1").find("\"~\" is written \"~0\"") != std::string::npos);
}

TEST_CASE("bad input: one line with place and reason") {
  const Files files{"bad"};
  const auto bad = [&](std::string_view text) {
    const std::string message = complaint_of(files.write("b.json", text));
    const std::string place = (files.folder() / "b.json").lexically_normal().string();
    CHECK(message.find('\n') == std::string::npos);
    return message.starts_with(place + ": ") ? message.substr(place.size() + 2) : message;
  };
  CHECK(bad("{").starts_with("not valid JSON"));
  CHECK(bad(small(R"(, "batch": 1, "batch": 2)")) == "key \"batch\" is given twice in one object");
  CHECK(bad(small(R"(, "bach": 1)")).starts_with("/bach: unknown key; did you mean \"batch\"?"));
  CHECK(bad(small(R"(, "name": "x")")).starts_with("/name: unknown key (schema, "));  // not nvme
  CHECK(bad(small(R"(, "batch": 1.5)")) == "/batch: expected an integer in [1, 1048576], got 1.5");
  CHECK(bad(small(R"(, "batch": [1, "two"])")) ==
        "/batch/1: expected an integer in [1, 1048576], got \"two\"");
  // An equal value would repeat the same point.
  CHECK(bad(small(R"(, "batch": [1, 2, 1.0])")) == "/batch/2: 1.0 is given twice");
  CHECK(bad(small(R"(, "gpu_count": [1, 1])")) == "/gpu_count/1: 1 is given twice");
  CHECK(bad(small(R"(, "kv_dtype": ["bf16", "bf16"])")) == "/kv_dtype/1: \"bf16\" is given twice");
  CHECK(bad(small(R"(, "method": ["full", "full"])")) == "/method/1: \"full\" is given twice");
  // A number outside the range of double, with its place.
  CHECK(bad("{\n  \"batch\": 1e999}") ==
        "not valid JSON: line 2, column 16: expected a number that fits in a double, up to "
        "1.8e308, got 1e999");
  CHECK(
      bad("[-1e999]").starts_with("not valid JSON: line 1, column 7: expected a number that fits"));
  CHECK(bad(small(R"(, "batch": [])")).starts_with("/batch: expected at least one value"));
  CHECK(bad(small(R"(, "memory": {"usable_hbm": "79 GiB/s"})")) ==
        "/memory/usable_hbm: expected a size such as \"80 GiB\", got \"79 GiB/s\"");
  CHECK(bad(small(R"(, "memory": {"usable_hbm": 79})")) ==
        "/memory/usable_hbm: expected a size such as \"80 GiB\", got 79");
  CHECK(bad(small(R"(, "memory": {"usable_hbm": "90 GiB"})")).find("at most the 80 GiB of") !=
        std::string::npos);
  // A point contains its memory if the scenario sets it.
  const auto keys = [&](std::string_view extra) {
    return read_scenario(files.write("m.json", small(extra)), {}).points.at(0).keys;
  };
  CHECK(keys(R"(, "memory": {"usable_hbm": "40 GiB"})").at("memory") ==
        nlohmann::ordered_json{{"usable_hbm", "40 GiB"}});
  CHECK_FALSE(keys("").contains("memory"));
  // An imaginary GPU may have any memory, and its usable part is compared with that memory.
  CHECK(bad(small(R"(, "memory": {"hbm": "8 TiB", "usable_hbm": "9 TiB"})"))
            .find("at most the 8 TiB of") != std::string::npos);
  CHECK(bad(small(R"(, "gpu_count": 3)")) ==
        "/gpu_count: llama-2-7b has 32 query heads, which 3 GPUs cannot share evenly");
  CHECK(bad(R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "prompt_tokens": 1,
                "output_tokens": 1, "dtype": "awq-int44"})")
            .starts_with(
                "/dtype: unknown format of weights \"awq-int44\"; did you mean \"awq-int4\"?"));
  // The place appears only once.
  CHECK(bad(R"({"model": "llama-2-7b", "gpu": 3, "prompt_tokens": 1, "output_tokens": 1})") ==
        "/gpu: expected a string, got 3");
  CHECK(bad(small(R"(, "stack": {"name": 3})")) == "/stack/name: expected a string, got 3");
  // A key that exists in exactly one member object.
  CHECK(bad(small(R"(, "max_num_seqs": 8)")) ==
        "/max_num_seqs: unknown key; it is a key of \"engine\": write \"engine\": "
        "{\"max_num_seqs\": …}");
  CHECK(bad(small(R"(, "requests": {"rate": 2})")) ==
        "/requests/rate: unknown key; it is a key of \"arrivals\": write \"arrivals\": {\"kind\": "
        "\"poisson\", \"rate\": …}");
  CHECK(bad(small(R"(, "requests": [{"count": 1}, {"users": 2}])"))
            .starts_with("/requests/1/users: unknown key; it is a key of \"arrivals\""));
  CHECK(bad(small(R"(, "plan": {"max_rel_error": 0.1})"))
            .starts_with("/plan/max_rel_error: unknown key; it is a key of \"quality\""));
  // Several members have a "name": the known keys are listed.
  CHECK(bad(small(R"(, "name": "x")")).find("it is a key of") == std::string::npos);
  CHECK(bad(small(R"(, "parallel": {"tensor": 2})")).starts_with("/parallel: unknown key (schema"));
  CHECK(bad(small(R"(, "engine": {"max_seqs": 8})")).starts_with("/engine/max_seqs: unknown key"));
  CHECK(bad(small(R"(, "method": "h20")")).starts_with("/method: unknown method \"h20\""));
  CHECK(bad(small(R"(, "method": {"name": 3})")) == "/method/name: expected a string, got 3");
  CHECK(bad(small(R"(, "method": {"name": "h2o", "budget": 1.5})")) ==
        "/method/budget: expected a share of the prompt's cache, such as 0.2 or \"20 %\", or "
        "entries per head, such as 256 or \"64 entries\", got 1.5");
  CHECK(bad(small(R"(, "method": {"name": "h2o", "budget": 20})")) ==
        "/method/budget: a bare 20 may mean 20 % or 20 entries per head; write 0.2 or \"20 %\" for "
        "the share, \"20 entries\" for the count");
  for (const char* none : {"\"0 %\"", "\"101 %\"", "\"20\"", "\"2.5 entries\"", "\"1e2 %\"",
                           "\"nan %\"", "\"-3 entries\"", "\"% 20\"", "\"\"", "true", "0"}) {
    INFO(none);
    CHECK(bad(small(fmt::format(R"(, "method": {{"name": "h2o", "budget": {}}})", none)))
              .starts_with("/method/budget: expected a share"));
  }
  CHECK(bad(small(R"(, "method": ["full", {"name": "h2o", "alhpa": 1}])"))
            .starts_with("/method/1: "));
  CHECK(bad(small(R"(, "stack": "hf-spda")")).starts_with("/stack: unknown "));
  CHECK(bad(small(R"(, "kind": "dynamic")")).starts_with("/kind: expected one of static"));
  CHECK(bad(small(R"(, "schema": "kvsim.scenario/9")")).starts_with("/schema: expected"));
  CHECK(bad(small(R"(, "points": [])")).starts_with("/points: expected at least one"));
  CHECK(bad(small(R"(, "points": [{"seed": 1}])")).starts_with("/points/0/seed: unknown key"));
  CHECK(bad(small(R"(, "figures": ["memory"])")).starts_with("/figures/0: expected one of"));
  CHECK(bad(small(R"(, "replay": {"trace": "nowhere.safetensors"})"))
            .starts_with("/replay/trace: no such file: "));
  CHECK(bad(R"({"gpu": "A100-80GB-SXM"})") == "\"model\" is missing");
  CHECK(bad("[]").starts_with("expected an object"));
  CHECK(complaint_of(files.folder() / "absent.json").find("cannot be read") != std::string::npos);
}

TEST_CASE("an error in an extended file names that file") {
  const Files files{"bad-base"};
  files.write("base.json", R"({"gpu": "A1000"})");
  const auto message = complaint_of(files.write("top.json", R"({"extends": "base.json"})"));
  CHECK(message.find("base.json: /gpu: unknown ") != std::string::npos);
}

TEST_CASE("files that extend each other are refused while a diamond is accepted") {
  const Files files{"circle"};
  files.write("a.json", R"({"extends": "b.json"})");
  const auto b = files.write("b.json", R"({"extends": "a.json"})");
  CHECK(complaint_of(b).ends_with(
      "a.json: /extends: files extend each other in a circle: b.json -> a.json -> b.json"));
  const auto self = files.write("self.json", R"({"extends": ["./self.json"]})");
  CHECK(complaint_of(self).ends_with(
      "/extends/0: files extend each other in a circle: self.json -> self.json"));
  files.write("root.json", kSmall);
  files.write("left.json", R"({"extends": "root.json"})");
  files.write("right.json", R"({"extends": "root.json", "batch": 5})");
  const auto top = files.write("top.json", R"({"extends": ["left.json", "right.json"]})");
  CHECK(read_scenario(top, {}).points.at(0).spec.batch == 5);
}

TEST_CASE("the number of points is bounded") {
  const Files files{"many"};
  std::string list = "1";
  for (int i = 2; i <= 400; ++i) list += fmt::format(", {}", i);
  const auto file =
      files.write("m.json", fmt::format(R"({{"model": "llama-2-7b", "gpu": "A100-80GB-SXM",
    "prompt_tokens": [{0}], "output_tokens": [{0}]}})",
                                        list));
  CHECK(complaint_of(file).ends_with("the lists make 160000 points, more than 100000"));
}

TEST_CASE("sizes beyond exact counting are refused") {
  const Files files{"huge"};
  const auto file = files.write("h.json", small(R"(, "batch": 1048576)"));
  CHECK(complaint_of(file, {{"/prompt_tokens", "16777216"}}).find("exceeds the number of bytes") !=
        std::string::npos);
}

TEST_CASE("the hash depends on the run and not on the spelling") {
  const Files files{"hash"};
  const Scenario plain = read_scenario(files.write("a.json", kSmall), {});
  const Scenario again = read_scenario(files.write("a.json", kSmall), {});
  CHECK(plain.hash == again.hash);
  CHECK(plain.hash.size() == 16);
  files.write("base.json", R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM",
    "output_tokens": 10})");
  const auto split = files.write(
      "split.json", R"({"extends": "base.json", "prompt_tokens": 100, "dtype": "fp16"})");
  CHECK(read_scenario(split, {}).hash == plain.hash);
  CHECK(read_scenario(split, {{"/batch", "2"}}).hash != plain.hash);
  // FNV-1a's published test vectors.
  CHECK(fingerprint("") == "cbf29ce484222325");
  CHECK(fingerprint("foobar") == "85944171f73967e8");
}

TEST_CASE("published values find their point") {
  const Files files{"published"};
  const std::string text = small(R"(, "batch": [1, 2], "method": ["full", {"name": "h2o",
    "budget": "20 entries"}], "published": [{"where": {"method": "h2o", "batch": 2, "budget": 20},
    "metric": "kv_bytes", "value": "335 GB", "source": "a paper", "note": "why"}])");
  const auto file = files.write("p.json", text);
  const Scenario scenario = read_scenario(file, {});
  REQUIRE(scenario.published.size() == 1);
  CHECK(scenario.published[0].point == 3);
  CHECK(scenario.published[0].value == rel(335e9));
  CHECK(scenario.published[0].text == "335 GB");
  CHECK(complaint_of(file, {{"/published/0/where", R"({"batch": 2})"}})
            .find("/published/0/where: picks 2 points") != std::string::npos);
  const Scenario other = read_scenario(file, {{"/batch", "4"}});
  CHECK(other.published.empty());
  CHECK(other.notes == std::vector<std::string>{"/published/0: matches no point after --set"});
  const auto bad = files.write("bad.json", small(R"(, "published": [{"metric": "kv_bytes",
    "value": 335, "source": "a paper"}])"));
  CHECK(complaint_of(bad).ends_with(
      "/published/0/value: expected a size such as \"80 GiB\", got 335"));
}

TEST_CASE("a scenario with only a replay needs no points and uses the points' methods") {
  const Files files{"replay"};
  files.write("t.safetensors", "");
  const Scenario alone = read_scenario(
      files.write("r.json", R"({"replay": {"trace": "t.safetensors", "methods": ["full",
      {"name": "h2o", "budget": [0.1, 0.2]}]}})"),
      {});
  CHECK(alone.points.empty());
  REQUIRE(alone.replay.has_value());
  CHECK(alone.replay->methods.size() == 3);
  const Scenario both =
      read_scenario(files.write("b.json", small(R"(, "batch": [1, 2], "method": ["full", "h2o"],
      "replay": {"trace": "t.safetensors"})")),
                    {});
  REQUIRE(both.replay.has_value());
  CHECK(both.replay->methods.size() == 2);
}

/// A model of the shape of the shipped trace: 6 layers, 6 query heads, 2 KV heads of 32.
constexpr std::string_view kTraceModel = R"({"model_type": "llama", "hidden_size": 192,
  "intermediate_size": 512, "num_attention_heads": 6, "num_key_value_heads": 2,
  "num_hidden_layers": 6, "vocab_size": 1000, "max_position_embeddings": 4096,
  "torch_dtype": "float16"})";
const fs::path kSample =
    fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";

/// A scenario at the lengths of the shipped trace; `method` is JSON.
std::string traced(std::string_view method, std::string_view prompt = "384") {
  return fmt::format(R"({{"model": {{"config": "config.json", "name": "own"}}, "gpu": "H200",
    "dtype": "fp16", "prompt_tokens": {}, "output_tokens": 128, "method": {}}})",
                     prompt, method);
}

TEST_CASE("a measured law equals the replay at the lengths of the trace") {
  const Files files{"measured"};
  files.write("config.json", kTraceModel);
  fs::copy_file(kSample, files.folder() / "t.safetensors");
  const Trace trace = Trace::open(kSample);
  // MiniCache's entries have a law, but its retained part of the prompt does not: bytes are
  // measured.
  for (const std::string_view name : {"kvmerger", "adakv", "d2o", "minicache"}) {
    INFO(name);
    Scenario scenario = read_scenario(
        files.write("s.json",
                    traced(fmt::format(
                        R"(["full", {{"name": "{}", "measured_on": "t.safetensors"}}])", name))),
        {});
    REQUIRE(scenario.points.size() == 2);
    CHECK(scenario.points[0].size_law == "closed form");
    CHECK(scenario.points[0].measured_on.empty());
    CHECK(scenario.points[1].size_law == "measured on t");
    // An estimate is used for MiniCache until it is measured.
    CHECK(scenario.points[1].kv_bytes_wanted.has_value() == (name == "minicache"));
    measure_laws(scenario, {});
    REQUIRE(scenario.points[1].notes.size() == 1);
    CHECK(scenario.points[1].notes[0].find("on trace t ") != std::string::npos);
    const ReplayResult replayed = replay(trace, {scenario.points[1].method}, {});
    const StaticResult run = run_static(scenario.points[1].spec);
    REQUIRE_FALSE(run.oom.has_value());
    const ReplayMethod& held = replayed.methods[0];
    REQUIRE(run.kv_bytes_per_layer.size() == held.layers.size());
    for (std::size_t layer = 0; layer < held.layers.size(); ++layer) {
      INFO(layer);
      // Each of the 2 heads holds the rounded mean: an error of at most half an entry. A row and
      // its side data have at most 136 B.
      const std::int64_t bytes = run.kv_bytes_per_layer[layer].count();
      CHECK(std::abs(bytes - held.layers[layer].bytes_final) <= 136);
    }
    CHECK(scenario.points[1].kv_bytes_wanted == run.kv_bytes);
  }
}

TEST_CASE("a law measured on a trace scales to other prompts and other numbers of layers") {
  const Files files{"measured-scaled"};
  fs::copy_file(kSample, files.folder() / "t.safetensors");
  Scenario scenario =
      read_scenario(files.write("s.json", R"({"model": "llama-2-7b", "gpu": "H200", "dtype": "fp16",
        "prompt_tokens": [3840, 38400], "output_tokens": 0,
        "method": {"name": "kvmerger", "measured_on": "t.safetensors"}})"),
                    {});
  measure_laws(scenario, {});
  const ReplayResult replayed =
      replay(Trace::open(kSample), {scenario.points[0].method}, {.threads = 2});
  const MeasuredLaw& law = *replayed.methods[0].measured_law;
  // Kept share and growth per head; their means equal those of the law.
  REQUIRE(law.head_kept.size() == law.kept.size());
  REQUIRE(law.head_growth.size() == law.kept.size());
  bool differ = false;
  for (std::size_t l = 0; l < law.kept.size(); ++l) {
    double kept = 0, growth = 0;
    for (std::size_t h = 0; h < law.head_kept[l].size(); ++h) {
      kept += law.head_kept[l][h];
      growth += law.head_growth[l][h];
      differ = differ || law.head_kept[l][h] != law.head_kept[l][0];
    }
    const auto heads = static_cast<double>(law.head_kept[l].size());
    CHECK(heads == 2);
    CHECK(kept / heads == test::rel(law.kept[l]));
    CHECK(growth / heads == doctest::Approx(law.growth[l]));
  }
  CHECK(differ);
  for (const ScenarioPoint& point : scenario.points) {
    double entries = 0;  // of one head in each layer
    for (std::size_t layer = 0; layer < 32; ++layer) {
      entries += law.kept[layer * 6 / 32] * static_cast<double>(point.spec.prompt_tokens);
    }
    REQUIRE(point.kv_bytes_wanted.has_value());
    const double row = 2 * 4096 * 2;  // K and V of all heads, fp16
    CHECK(std::abs(static_cast<double>(point.kv_bytes_wanted->count()) - entries * row) <=
          32 * 0.5 * row);
  }
}

TEST_CASE("measured_on: refused if invalid, reported if unused, part of the hash") {
  const Files files{"measured-errors"};
  files.write("config.json", kTraceModel);
  files.write("empty.safetensors", "");
  fs::copy_file(kSample, files.folder() / "t.safetensors");
  fs::copy_file(kSample, files.folder() / "u.safetensors");
  const auto said = [&](std::string_view method) {
    return complaint_of(files.write("s.json", traced(method)));
  };
  const auto has = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const std::string without = said(R"(["full", {"name": "kvmerger"}])");
  has(without, "s.json: /method/1: method \"kvmerger\" has no closed size law");
  has(without, "\"measured_on\"");
  has(said(R"({"name": "kvmerger", "measured_on": "absent.safetensors"})"),
      "/method/measured_on: no such file: ");
  has(said(R"({"name": "kvmerger", "measured_on": 3})"), "/method/measured_on: expected");
  has(said(R"({"name": "kvmerger", "measured_on": "empty.safetensors"})"), "/method/measured_on: ");
  // The shipped trace does not contain decisions.
  has(said(R"({"name": "dms", "measured_on": "t.safetensors"})"), "decision.evict");
  has(said(R"({"name": "kvmerger", "mesured_on": "t.safetensors"})"), "mesured_on");
  has(complaint_of(files.write("r.json", R"({"replay": {"trace": "t.safetensors",
        "methods": [{"name": "kvmerger", "measured_on": "t.safetensors"}]}})")),
      "/replay/methods/0/measured_on: is for points");

  const Scenario closed = read_scenario(
      files.write("c.json", traced(R"({"name": "h2o", "measured_on": "t.safetensors"})")), {});
  CHECK(closed.points[0].size_law == "closed form");
  CHECK(closed.points[0].measured_on.empty());
  REQUIRE(closed.points[0].notes.size() == 1);
  has(closed.points[0].notes[0], "measured_on is not used");

  const auto on = [&](std::string_view name) {
    return read_scenario(
        files.write("h.json",
                    traced(fmt::format(R"({{"name": "kvmerger", "measured_on": "{}"}})", name))),
        {});
  };
  CHECK(on("t.safetensors").hash != on("u.safetensors").hash);
  CHECK(on("t.safetensors").echo.at("method").at("measured_on") == "t.safetensors");
  // The path in an extended file is relative to that file.
  files.write("deep/top.json", R"({"extends": "../h.json", "title": "above"})");
  const Scenario above = read_scenario(files.folder() / "deep/top.json", {});
  CHECK(above.points[0].keys.at("measured_on") == "../t.safetensors");
  CHECK(above.points[0].size_law == "measured on t");
}

TEST_CASE("a stack is given by name, with version and usage, or as one word") {
  const Files files{"stacks"};
  const auto stacks = [&](std::string_view value) {
    std::vector<std::string> out;
    const fs::path file = files.write("s.json", small(fmt::format(R"(, "stack": {})", value)));
    for (const ScenarioPoint& point : read_scenario(file, {}).points) {
      CHECK(point.keys.at("stack") == label_of(*point.spec.stack));
      out.push_back(label_of(*point.spec.stack));
    }
    return out;
  };
  CHECK(stacks(R"("vllm")") == std::vector<std::string>{"vllm"});
  CHECK(stacks(R"({"name": "vllm"})") == std::vector<std::string>{"vllm"});
  CHECK(stacks(R"({"name": "vllm", "version": "0.19", "usage": "llm"})") ==
        std::vector<std::string>{"vllm@0.19:llm"});
  CHECK(stacks(R"(["vllm@0.19", {"name": "sglang", "version": "0.5.9"}, "hf-sdpa"])") ==
        std::vector<std::string>{"vllm@0.19", "sglang@0.5.9", "hf-sdpa"});
  const auto complaint = [&](std::string_view value) {
    return complaint_of(files.write("s.json", small(fmt::format(R"(, "stack": {})", value))));
  };
  CHECK(complaint(R"({"name": "vllm", "version": "0.99"})")
            .find("/stack/version: expected a version of vLLM from 0.8 to 0.30, got \"0.99\"") !=
        std::string::npos);
  CHECK(complaint(R"({"name": "vllm", "version": 0.19})")
            .find("/stack/version: expected a version in quotes, such as \"0.19\", got 0.19") !=
        std::string::npos);
  CHECK(complaint(R"({"name": "vllm", "usage": "offline"})")
            .find("/stack/usage: stack \"vllm\": expected usage server or llm, got \"offline\"") !=
        std::string::npos);
  CHECK(complaint(R"({"version": "0.19"})").find("/stack/name: missing") != std::string::npos);
  CHECK(complaint(R"({"name": "vllm", "verion": "0.19"})").find("did you mean \"version\"") !=
        std::string::npos);
  CHECK(complaint("7").find("/stack: expected a stack's name, or {") != std::string::npos);
}

TEST_CASE("each key of the engine changes exactly one setting") {
  const std::map<KeyType::Kind, const char*> values{
      {KeyType::Kind::kInteger, "7"},     {KeyType::Kind::kNumber, "1"},
      {KeyType::Kind::kBoolean, "false"}, {KeyType::Kind::kSize, "\"3 GiB\""},
      {KeyType::Kind::kTime, "\"3 us\""}, {KeyType::Kind::kBandwidth, "\"3 GB/s\""}};
  std::vector<StackOptions> all;
  for (const ScenarioKey& key : scenario_object("engine").keys) {
    INFO(key.name);
    const bool is_name = key.type.kind == KeyType::Kind::kName;
    const std::string value =
        is_name ? fmt::format("\"{}\"", names_of(key.type).back()) : values.at(key.type.kind);
    const StackOptions options =
        read_engine(Field::parse(fmt::format(R"({{"{}": {}}})", key.name, value), "e.json"));
    CHECK_FALSE(options.empty());
    CHECK(std::find(all.begin(), all.end(), options) == all.end());
    all.push_back(options);
  }
  CHECK(all.size() > 10);
}

TEST_CASE("the schema has every key, with its help and default") {
  const auto schema = scenario_schema();
  for (const ScenarioObject& object : scenario_objects()) {
    INFO(object.name);
    const auto& part =
        object.name == "scenario" ? schema : schema.at("$defs").at(std::string{object.name});
    CHECK(part.at("properties").size() == object.keys.size());
    for (const ScenarioKey& key : object.keys) {
      const std::string said = part.at("properties").at(std::string{key.name}).at("description");
      CHECK(said.starts_with(help_text(key)));
    }
  }
  const auto& engine = schema.at("$defs").at("engine").at("properties");
  CHECK(engine.at("memory_fraction").dump() ==
        R"({"oneOf":[{"type":"null"},{"type":"number","minimum":0.01,"maximum":1.0}],)"
        R"("description":"the share of the GPU's memory that the engine uses, as its stack )"
        R"(defines it (`kvsim show stack`): gpu_memory_utilization, mem_fraction_static, )"
        R"(free_gpu_memory_fraction, cache_max_entry_count; default: the stack's"})");
}

TEST_CASE("the schema and the reader accept and refuse the same values") {
  const test::JsonSchema schema(scenario_schema());
  const Files files{"schema"};
  const auto agree = [&](std::string_view more, bool good) {
    const std::string text = small(more);
    INFO(text);
    CHECK((complaint_of(files.write("s.json", text)) == "no complaint") == good);
    CHECK(schema.accepts(nlohmann::json::parse(text)) == good);
  };
  // null is equivalent to omitting an optional key; it is not a valid list item.
  for (const char* key : {"schema", "title", "description", "extends", "kind", "seed", "gpu_count",
                          "stack", "calibration", "kv_dtype", "batch", "method", "memory", "points",
                          "replay", "published", "figures", "sweep"}) {
    agree(fmt::format(R"(, "{}": null)", key), true);
  }
  agree(R"(, "batch": [null])", false);
  agree(R"(, "calibration": ["nominal", "builtin"])", true);
  agree(R"(, "calibration": [])", false);
  agree(R"(, "calibration": "")", false);
  agree(R"(, "calibration": true)", false);
  agree(R"(, "stack": {"name": "vllm", "version": "0.19", "usage": "llm"})", true);
  agree(R"(, "stack": ["hf-sdpa", {"name": "vllm", "version": null, "usage": null}])", true);
  agree(R"(, "stack": {"version": "0.19"})", false);
  agree(R"(, "stack": {"name": "vllm", "version": 0.19})", false);
  agree(R"(, "stack": {"name": "vllm", "usage": "offline"})", false);
  agree(R"(, "stack": {"name": "vllm", "release": "0.19"})", false);
  agree(R"(, "stack": 7)", false);
  agree(R"(, "method": [null])", false);
  agree(R"(, "method": {"name": null})", false);
  agree(R"(, "method": {"name": "h2o", "budget": null, "recent": null})", true);
  agree(R"(, "method": {"name": "h2o", "measured_on": null})", true);
  agree(R"(, "method": {"name": "h2o", "measured_on": 3})", false);
  const auto replayed = [&](std::string_view measured, bool good) {
    agree(fmt::format(R"(, "replay": {{"trace": "{}", "methods": [{{"name": "h2o",
      "measured_on": {}}}]}})",
                      kSample.string(), measured),
          good);
  };
  replayed("null", true);
  replayed(R"("t.safetensors")", false);
  agree(R"(, "points": [{"batch": null}])", true);
  agree(R"(, "points": [null])", false);
  agree(R"(, "memory": {"hbm": null})", true);
  const auto axis = [&](std::string_view members, bool good) {
    agree(fmt::format(R"(, "sweep": {{"axes": [{{"key": {}}}]}})", members), good);
  };
  axis(R"("/batch", "values": [1, null, "a", {"b": 2}])", true);
  axis(R"("/batch", "low": 1, "high": 2.5, "steps": 2, "scale": "log", "unit": null)", true);
  axis(R"("/a~1b/~0", "values": [1])", true);
  axis(R"("batch", "values": [1])", false);
  axis(R"("/", "values": [1])", false);
  axis(R"("/a~2", "values": [1])", false);
  axis(R"("/batch", "values": [])", false);
  axis(R"("/batch", "low": 1, "high": 2, "steps": 1)", false);
  axis(R"("/batch", "low": 1, "high": 2, "steps": 2, "scale": "cubic")", false);
  axis(R"("/batch", "value": [1])", false);
  agree(R"(, "sweep": {"mode": "random", "samples": 9, "seed": 1, "skip_impossible": true})", true);
  agree(R"(, "sweep": {"mode": "random", "samples": 0})", false);
  agree(R"(, "sweep": {"mode": "all"})", false);
  agree(R"(, "sweep": {"axes": null})", true);
  const auto published = [&](std::string_view where, std::string_view value, bool good) {
    agree(fmt::format(R"(, "published": [{{"metric": "kv_bytes", "value": {}, "source": "s",
      "where": {}}}])",
                      value, where),
          good);
  };
  published("null", R"("1 GiB")", true);
  published(R"({"batch": null, "budget": null})", R"("1 GiB")", true);
  published("{}", "null", false);

  for (const char* budget : {"0.2", "1", "1.0", "101", "2147483647", "128.0", "[0.1, 128]",
                             "\"20 %\"", "\"5.5%\"", "\"64 entries\"", "[\"1 entry\", 0.2]"}) {
    agree(fmt::format(R"(, "method": {{"name": "h2o", "budget": {}}})", budget), true);
  }
  for (const char* budget : {"0", "-1", "1.5", "2", "100", "164.5", "2147483648", "\"0.2\"", "[]",
                             "[0]", "\"101 %\"", "\"20\"", "\"0 entries\"", "\"% 20\""}) {
    agree(fmt::format(R"(, "method": {{"name": "h2o", "budget": {}}})", budget), false);
  }
  for (const char* size : {"80 GiB", " 7.5e1 GiB ", "79GB", "8e10 B", "80000000 KB", ".05 TiB"}) {
    agree(fmt::format(R"(, "memory": {{"hbm": "{}"}})", size), true);
  }
  for (const char* size : {"80", "80 gib", "GiB", "e GiB", "+80 GiB", "-80 GiB", "8.0.0 GiB",
                           "80 GiB/s", "80 kiB", ". GiB", "8e GiB"}) {
    agree(fmt::format(R"(, "memory": {{"hbm": "{}"}})", size), false);
  }
  for (const auto& entry : fs::directory_iterator{fs::path{KVSIM_SOURCE_DIR} / "scenarios"}) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".json")) continue;
    INFO(name);
    CHECK(schema.accepts(Field::read_file(entry.path()).raw()));
  }
}

/// The table of an object's keys in docs/scenarios.md.
std::string key_table(std::string_view called) {
  const std::span<const std::string_view> of_services = keys_of_kind(true);
  const auto is_of_service = [&](const ScenarioKey& key) {
    return std::find(of_services.begin(), of_services.end(), key.name) != of_services.end();
  };
  std::string table = "| key | type | range | default | meaning |\n|---|---|---|---|---|\n";
  const bool services = called == "service";
  for (const ScenarioKey& key : scenario_object(services ? "point" : called).keys) {
    if (services != is_of_service(key) && (services || called == "scenario")) continue;
    table += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, type_text(key),
                         range_text(key), key.default_text, help_text(key));
  }
  return table;
}

TEST_CASE("the key tables of docs/scenarios.md are those of the key table") {
  const fs::path file = fs::path{KVSIM_SOURCE_DIR} / "docs/scenarios.md";
  std::ifstream in{file};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  constexpr std::string_view kMark = "<!-- keys: ";
  std::string made;
  std::set<std::string> named;
  std::size_t from = 0;
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, from)) {
    const std::size_t begin = at + kMark.size();
    const std::string object = text.substr(begin, text.find(" -->", begin) - begin);
    const std::size_t table = text.find('\n', at) + 1;
    made += text.substr(from, table - from) + key_table(object);
    named.insert(object);
    from = text.find("\n\n", table) + 1;
  }
  made += text.substr(from);
  if (std::getenv("KVSIM_REMAKE_GOLDEN") != nullptr) std::ofstream{file} << made;
  CHECK(made == text);
  for (const ScenarioObject& object : scenario_objects()) {
    const bool is_elsewhere = object.name == "point" || object.name == "replay_method" ||
                              object.name == "where" || object.name == "requests" ||
                              object.name == "arrivals";
    INFO(object.name);
    CHECK(named.contains(std::string{object.name}) == !is_elsewhere);
  }
  for (const PublishedMetric& metric : published_metrics()) {
    INFO(metric.name);
    CHECK(text.find(fmt::format("`{}`", metric.name)) != std::string::npos);
  }
}

TEST_CASE("shipped scenarios are read and their questions are as expected") {
  for (const auto& entry : fs::directory_iterator{fs::path{KVSIM_SOURCE_DIR} / "scenarios"}) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path().string());
    const Scenario scenario = read_scenario(entry.path(), {});
    CHECK_FALSE(scenario.description.empty());
    CHECK_FALSE(scenario.points.empty());
    CHECK(scenario.notes.empty());
  }
}

TEST_CASE("kv-sizes: the papers' values in the intended units") {
  const Scenario scenario =
      read_scenario(fs::path{KVSIM_SOURCE_DIR} / "scenarios/kv-sizes.json", {});
  const auto wanted = [&](std::size_t i) {
    return static_cast<double>(scenario.points.at(i).kv_bytes_wanted.value().count());
  };
  // 2 x 80 layers x 8192 x 2 B x 128,000 = 335,544,320,000
  CHECK(wanted(0) == 335'544'320'000.0);
  // 2 x 80 layers x 8 heads x 128 x 2 B x 8192 x 128 = 320 GiB
  CHECK(wanted(1) == 320.0 * 1024 * 1024 * 1024);
  // 2 x 96 x 12288 x 2 B x 4096 x 64 = 1152 GiB, which is 1,237 GB, not the printed 1,208
  CHECK(wanted(2) == 1152.0 * 1024 * 1024 * 1024);
  CHECK(wanted(3) == 1024.0 * 1024 * 1024);
}

}  // namespace
}  // namespace kvsim
