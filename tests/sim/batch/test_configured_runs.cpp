// Static runs of every published configuration (KVSIM_DATA_DIR) and of the catalogue's hybrid
// models.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/gpu/gpu.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

/// An H200 with memory for any model.
Gpu roomy() {
  Gpu gpu = find_gpu("H200-141GB-SXM");
  gpu.hbm = gpu.hbm_usable = 40_GiB * 1024;
  return gpu;
}

StaticResult run(const Llm& llm, const char* stack, const MethodSpec& method, std::int64_t prompt,
                 std::int32_t gpus = 1) {
  static const Gpu gpu = roomy();
  const Dtype kv = default_kv_dtype(llm, llm.published_dtype);
  const StaticSpec spec{.llm = &llm,
                        .gpu = &gpu,
                        .stack = &find_stack(stack),
                        .method = make_method(method, prompt, method_site(llm, kv)),
                        .weight_dtype = llm.published_dtype,
                        .kv_dtype = kv,
                        .batch = 2,
                        .prompt_tokens = prompt,
                        .output_tokens = 3,
                        .calibration = &builtin_calibration(),
                        .tensor_parallel = gpus};
  return run_static(spec);
}

void check_run(const Llm& llm) {
  for (const std::int64_t prompt : {100, 9001}) {
    const StaticResult result = run(llm, "ideal", {"full", {}, {}}, prompt);
    REQUIRE_FALSE(result.oom);
    CHECK(result.decode_time->count() > 0);
    // Values are not rounded: they equal those of `kvsim show model` up to fractions of a byte.
    const double held = 2 * held_bytes(llm, prompt + 3, default_kv_dtype(llm, llm.published_dtype));
    const auto kv = static_cast<double>(result.timeline.back().kv.count());
    CHECK(kv >= held);
    CHECK(kv <= held + 2 * llm.n_layers());
  }
  const StaticResult paged = run(llm, "vllm", {"full", {}, {}}, 3000);
  REQUIRE_FALSE(paged.oom);
  CHECK(paged.startup->max_concurrency > 1);
  const StaticResult eager = run(llm, "hf-eager", {"full", {}, {}}, 500);
  CHECK_FALSE(eager.oom);
}

TEST_CASE("every published configuration runs, and holds the bytes in its summary") {
  const auto data = test::data_dir();
  if (!data) return;
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator{*data / "configs"}) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".json") || name.ends_with(".quant.json")) continue;
    INFO(name);
    check_run(read_hf_config_file(entry.path(), "m"));
    ++models;
  }
  CHECK(models >= 58);
}

TEST_CASE("the catalogue's hybrid models run, and hold the bytes in their summaries") {
  for (const char* name :
       {"Qwen3-Next-80B-A3B", "Kimi-Linear-48B-A3B", "Nemotron-H-56B", "Jamba-1.5-Mini",
        "Falcon-H1-34B", "Granite-4.0-H-Small", "DeepSeek-V3.2", "GLM-5.2", "DeepSeek-V4-Flash",
        "MiniMax-M3", "Llama-4-Scout", "Gemma-4-26B-A4B", "MiMo-V2.5"}) {
    INFO(name);
    check_run(find_llm(name));
  }
}

TEST_CASE("a method compresses the layers that cache rows, and reports which stay full") {
  const Llm& llm = find_llm("Qwen3-Next-80B-A3B");
  const MethodSpec snapkv{"snapkv", {}, Budget{.fraction = 0, .entries = 512}};
  const StaticResult small = run(llm, "ideal", snapkv, 8000);
  const StaticResult full = run(llm, "ideal", {"full", {}, {}}, 8000);
  // 12 full layers of 2 KV heads of 256 + 256 elements, 2 sequences: 8,003 or 512 + 3 entries.
  const double entry = 12.0 * 2 * 512 * 2 * 2;
  CHECK((full.timeline.back().kv - small.timeline.back().kv).count() == entry * (8000 - 512));
  CHECK(small.decode_time->count() < full.decode_time->count());
  bool is_noted = false;
  for (const std::string& note : small.notes) {
    is_noted = is_noted || test::has(note, "36 gated-delta layers are not compressed");
  }
  CHECK(is_noted);
  for (const std::string& note : full.notes) CHECK_FALSE(test::has(note, "are not compressed"));

  // Every layer of DeepSeek-V3.2 has an index.
  const StaticResult none = run(find_llm("DeepSeek-V3.2"), "ideal", snapkv, 8000);
  const StaticResult all = run(find_llm("DeepSeek-V3.2"), "ideal", {"full", {}, {}}, 8000);
  CHECK(none.timeline.back().kv == all.timeline.back().kv);
}

TEST_CASE("layers by the pyramid count only layers that cache rows") {
  const Llm& llm = find_llm("Qwen3-Next-80B-A3B");
  const MethodSpec pyramid{"pyramidkv", {}, Budget{.fraction = 0, .entries = 512}};
  const auto method = make_method(pyramid, 8000, method_site(llm, Dtype::kBf16));
  std::int64_t sum = 0;
  for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
    if (!caches_rows(llm.layers[static_cast<std::size_t>(l)])) continue;
    sum += *method->entries_held(l, 8000, 8000);
  }
  CHECK(sum == test::rel(12.0 * 512, 0.05));
}

}  // namespace
}  // namespace kvsim
