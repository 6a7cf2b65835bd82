#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

constexpr const char* kDense = "llama-3.1-8b";
constexpr const char* kExperts = "mixtral-8x7b";

Stack on(const std::string& label, const std::string& gpu, const StackOptions& options = {},
         std::int32_t gpus = 1, const char* llm = kDense) {
  return with_options(find_stack(label), options, {&find_gpu(gpu), &find_llm(llm), gpus});
}

std::string complaint(const std::string& label) {
  try {
    (void)find_stack(label);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

const EngineSetting& setting(const Stack& stack, std::string_view key) {
  for (const EngineSetting& s : stack.settings->settings) {
    if (s.key == key) return s;
  }
  FAIL("no setting " << key);
  return stack.settings->settings.front();
}

TEST_CASE("TensorRT-LLM refuses AMD's GPUs") {
  const Gpu& gpu = find_gpu("MI300X");
  try {
    (void)with_options(find_stack("trtllm"), {}, {&gpu, &find_llm("llama-3.1-8b"), 1});
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK(test::has(error.what(), "stack trtllm runs on NVIDIA's GPUs, not on MI300X"));
  }
  CHECK_NOTHROW((void)with_options(find_stack("vllm"), {}, {&gpu, &find_llm("llama-3.1-8b"), 1}));
}

TEST_CASE("vLLM's batch limits depend on GPU memory, the A100, usage and version") {
  struct Row {
    const char* label;
    const char* gpu;
    std::int64_t tokens, sequences;
  };
  // vllm engine/arg_utils.py at v0.8.0, v0.8.4, v0.8.5, v0.9.0, v0.19.1, v0.28.0 and v0.30.0.
  for (const Row& row : std::vector<Row>{{"vllm@0.19", "H100-80GB-SXM", 8192, 1024},
                                         {"vllm@0.19:llm", "H100-80GB-SXM", 16384, 1024},
                                         {"vllm@0.19", "RTX-4090", 2048, 256},
                                         {"vllm@0.19:llm", "RTX-4090", 8192, 256},
                                         {"vllm@0.19", "A100-80GB-SXM", 2048, 256},
                                         {"vllm@0.19", "A800-80GB-SXM", 8192, 1024},
                                         {"vllm@0.19", "A100-40GB-SXM", 2048, 256},
                                         {"vllm@0.19", "B200", 8192, 1024},
                                         {"vllm@0.28", "B200", 16384, 1024},
                                         {"vllm@0.28:llm", "B200", 16384, 1024},
                                         {"vllm@0.28", "H200-141GB-SXM", 8192, 1024},
                                         {"vllm@0.30", "B200", 16384, 1024},
                                         {"vllm@0.30", "H100-80GB-SXM", 8192, 1024},
                                         {"vllm@0.30", "A100-80GB-SXM", 2048, 256},
                                         {"vllm", "L40S", 2048, 256},
                                         {"vllm@0.8.5", "A100-80GB-SXM", 8192, 1024},
                                         {"vllm@0.8.4", "A100-80GB-SXM", 2048, 256},
                                         {"vllm@0.8.4", "H100-80GB-SXM", 8192, 1024},
                                         {"vllm@0.8.4", "B200", 2048, 256},
                                         {"vllm@0.8.0", "RTX-4090", 2048, 1024}}) {
    INFO(row.label << " on " << row.gpu);
    const Stack stack = on(row.label, row.gpu);
    CHECK(stack.prefill_chunk == row.tokens);
    CHECK(stack.max_num_seqs == row.sequences);
    CHECK(stack.block_tokens == 16);
  }
}

TEST_CASE("vLLM uses 0.92 of the memory since 0.20, including room for CUDA graphs") {
  CHECK(on("vllm@0.19", "H100-80GB-SXM").usable_fraction == 0.9);
  CHECK_FALSE(on("vllm@0.19", "H100-80GB-SXM").counts_graphs);
  CHECK(on("vllm@0.20", "H100-80GB-SXM").usable_fraction == 0.92);
  CHECK(on("vllm@0.20", "H100-80GB-SXM").counts_graphs);
  // Since 0.25, dense models run on a model runner whose estimate is 0 before 0.29.
  for (const char* label : {"vllm@0.25", "vllm@0.28.1"}) {
    CHECK_FALSE(on(label, "H100-80GB-SXM").counts_graphs);
    CHECK(on(label, "H100-80GB-SXM", {}, 1, kExperts).counts_graphs);
  }
  // Qwen3 since 0.22, Llama and Mistral since 0.23, and their quantized checkpoints since 0.24.
  struct Row {
    const char* label;
    const char* llm;
    bool counts;
  };
  for (const Row& row : std::vector<Row>{{"vllm@0.21", "qwen3-8b", true},
                                         {"vllm@0.22", "qwen3-8b", false},
                                         {"vllm@0.22", "llama-3.1-8b", true},
                                         {"vllm@0.23.1", "llama-3.1-8b", false},
                                         {"vllm@0.23", "mistral-7b-v0.3", false},
                                         {"vllm@0.23", "llama-3.3-70b-fp8", true},
                                         {"vllm@0.24", "llama-3.3-70b-fp8", false},
                                         {"vllm@0.24", "gemma-2-9b", true},
                                         {"vllm@0.24", kExperts, true}}) {
    INFO(row.label << ", " << row.llm);
    CHECK(on(row.label, "H100-80GB-SXM", {}, 1, row.llm).counts_graphs == row.counts);
  }
  for (const char* label : {"vllm@0.29", "vllm"}) {
    CHECK(on(label, "H100-80GB-SXM").usable_fraction == 0.92);
    CHECK(on(label, "H100-80GB-SXM").counts_graphs);
    CHECK(on(label, "H100-80GB-SXM", {}, 1, kExperts).counts_graphs);
  }
  CHECK_FALSE(on("vllm@0.20", "H100-80GB-SXM", {.cuda_graphs = false}).counts_graphs);
}

TEST_CASE("SGLang's chunk and memory fraction depend on GPU memory, GPUs and version") {
  // sglang server_args.py: reserved MiB = 512 + 1.5 x max(chunk, 2048) + 2 x graph sequences
  // + 128 x GPUs + graphs.
  const auto share = [](double memory, double reserved) {
    return std::round((1 - reserved / memory) * 1000) / 1000;
  };
  const Stack h100 = on("sglang@0.5.9", "H100-80GB-SXM");
  CHECK(h100.prefill_chunk == 8192);
  CHECK(h100.usable_fraction == share(81920, 512 + 1.5 * 8192 + 2 * 256 + 128));
  const Stack four = on("sglang@0.5.9", "H100-80GB-SXM", {}, 4);
  CHECK(four.usable_fraction == share(81920, 512 + 1.5 * 8192 + 2 * 512 + 4 * 128));
  const Stack newest = on("sglang", "H100-80GB-SXM");
  CHECK(newest.usable_fraction == share(81920, 512 + 1.5 * 8192 + 2 * 256 + 128 + 8 * 58));
  const Stack latent = on("sglang", "H200-141GB-SXM", {}, 8, "deepseek-v3");
  CHECK(latent.usable_fraction == share(144384, 512 + 1.5 * 8192 + 2 * 512 + 8 * 128 + 1536));
  const Stack rtx = on("sglang@0.5.9", "RTX-4090");
  CHECK(rtx.prefill_chunk == 2048);
  CHECK(rtx.usable_fraction == share(24576, 512 + 1.5 * 2048 + 2 * 24 + 128));
  CHECK(on("sglang@0.5.3", "RTX-4090").usable_fraction ==
        share(24576, 512 + 1.5 * 2048 + 2 * 16 + 128));
  // sglang #37898: since 0.5.20, GPUs of 20 to 35 GiB have larger chunks and more captured
  // sequences.
  CHECK(on("sglang@0.5.18", "RTX-4090").prefill_chunk == 2048);
  for (const char* label : {"sglang@0.5.20", "sglang"}) {
    const Stack raised = on(label, "RTX-4090");
    CHECK(raised.prefill_chunk == 4096);
    CHECK(raised.usable_fraction == share(24576, 512 + 1.5 * 4096 + 2 * 48 + 128 + 8 * 50));
    CHECK(on(label, "RTX-4090", {}, 4).usable_fraction ==
          share(24576, 512 + 1.5 * 4096 + 2 * 160 + 4 * 128 + 8 * 50));
    CHECK(on(label, "L40S").usable_fraction == on("sglang@0.5.18", "L40S").usable_fraction);
  }
  CHECK(on("sglang", "B200").prefill_chunk == 16384);
  // A chunk size set by the user changes the reserved memory.
  CHECK(on("sglang@0.5.9", "RTX-4090", {.prefill_chunk = 4096}).usable_fraction ==
        share(24576, 512 + 1.5 * 4096 + 2 * 24 + 128));
  const Stack old = on("sglang@0.4.6", "A100-80GB-SXM", {}, 4);
  CHECK(old.usable_fraction == 0.85);
  CHECK(old.prefill_chunk == 8192);
  CHECK(on("sglang@0.4.9", "H100-80GB-SXM").usable_fraction == share(80, 9.5 + 0.5));
}

TEST_CASE("TensorRT-LLM's blocks have 32 tokens since 1.0 and its limits are those of any GPU") {
  for (const char* gpu : {"H100-80GB-SXM", "L40S"}) {
    CHECK(on("trtllm@0.21", gpu).block_tokens == 64);
    const Stack stack = on("trtllm", gpu);
    CHECK(stack.block_tokens == 32);
    CHECK(stack.prefill_chunk == 8192);
    CHECK(stack.max_num_seqs == 2048);
    CHECK(stack.usable_fraction == 0.9);
  }
  CHECK(on("trtllm@0.11", "H100-80GB-SXM").max_num_seqs == 256);
  CHECK(on("trtllm@0.13", "H100-80GB-SXM").max_num_seqs == 256);
  CHECK(on("trtllm@0.14", "H100-80GB-SXM").max_num_seqs == 2048);
  CHECK(on("trtllm@0.16", "H100-80GB-SXM").prefix_caching == false);
  CHECK_FALSE(on("trtllm@0.17", "H100-80GB-SXM").prefix_caching);
}

TEST_CASE("SGLang's attention groups reserve memory and divide its limits") {
  const auto of = [](const char* label, std::int32_t groups, const StackOptions& options = {}) {
    return with_options(find_stack(label), options,
                        {.gpu = &find_gpu("H200-141GB-SXM"),
                         .llm = &find_llm("deepseek-v3"),
                         .gpus = 8,
                         .attention_groups = groups});
  };
  const Stack one = of("sglang@0.5.9", 1), eight = of("sglang@0.5.9", 8);
  CHECK(one.attention_groups == 1);
  CHECK(eight.attention_groups == 8);
  // server_args.py: 512 sequences have graphs; 3 MiB, plus 1.5 MiB above 300, for each of 8 groups.
  CHECK((one.usable_fraction - eight.usable_fraction) * 144384 ==
        doctest::Approx(4.5 * 512 * 8).epsilon(0.01));
  CHECK(eight.prefill_chunk == one.prefill_chunk / 8);
  CHECK(eight.max_num_seqs == one.max_num_seqs);
  CHECK(of("sglang@0.5.9", 8, {.max_num_seqs = 100}).max_num_seqs == 12);
  CHECK(of("sglang@0.5.9", 8, {.prefill_chunk = 32768}).prefill_chunk == 4096);
  CHECK((of("sglang@0.4.9", 1).usable_fraction - of("sglang@0.4.9", 2).usable_fraction) * 144384 ==
        doctest::Approx(4096).epsilon(0.04));
  // The limits of other engines apply per group.
  CHECK(of("vllm@0.19", 8).prefill_chunk == of("vllm@0.19", 1).prefill_chunk);
}

TEST_CASE("SGLang schedules ahead except in a pipeline, and with drafts since 0.5.11") {
  const auto ahead = [](const char* label, bool drafts, std::int32_t stages) {
    return with_options(find_stack(label), {},
                        {.gpu = &find_gpu("H100-80GB-SXM"),
                         .llm = &find_llm(kDense),
                         .gpus = 2,
                         .speculates = drafts,
                         .stages = stages})
        .schedules_ahead;
  };
  CHECK(ahead("sglang@0.5.9", false, 1));
  CHECK_FALSE(ahead("sglang@0.5.9", false, 2));
  CHECK_FALSE(ahead("sglang@0.5.10", true, 1));
  CHECK(ahead("sglang@0.5.11", true, 1));
}

TEST_CASE("TensorRT-LLM before 0.12 has XQA only for 8 and 16 query heads per KV head") {
  CHECK(on("trtllm@0.11", "H100-80GB-SXM", {}, 1, "llama-3-8b").attention_per_clock == 25);
  CHECK(on("trtllm@0.11", "A100-80GB-SXM", {}, 1, "llama-3-70b").attention_per_clock == 48);
  CHECK(on("trtllm@0.11", "H100-80GB-SXM", {}, 1, "llama-3-70b").attention_per_clock == 0);
  CHECK(on("trtllm@0.12", "H100-80GB-SXM", {}, 1, "llama-3-8b").attention_per_clock == 0);
  CHECK(on("trtllm@0.11", "H100-80GB-SXM", {}, 1, "llama-2-7b").attention_per_clock == 0);
}

TEST_CASE("vLLM sorts the logits for top-p before 0.17, and FlashInfer does not") {
  double previous = 1e9;
  for (const char* label : {"vllm@0.16", "vllm@0.20", "vllm@0.21"}) {
    const Stack stack = on(label, "H100-80GB-SXM");
    CHECK(stack.cutoff.bytes_per_logit < previous);
    CHECK_FALSE(stack.samples_cutoff);
    previous = stack.cutoff.bytes_per_logit;
  }
  CHECK(on("vllm-v0@0.6.3", "H100-80GB-SXM").cutoff == on("vllm@0.16", "H100-80GB-SXM").cutoff);
  CHECK(on("vllm", "H100-80GB-SXM", {.cutoff_sampling = true}).samples_cutoff);
}

TEST_CASE("SGLang with speculation runs 48 requests, in step with the GPU before 0.5.12") {
  const auto with = [](const char* label, bool speculates, const StackOptions& options = {}) {
    return with_options(find_stack(label), options,
                        {&find_gpu("H100-80GB-SXM"), &find_llm("llama-3.1-8b"), 1, speculates});
  };
  CHECK(with("sglang@0.5.3", true).max_num_seqs == 48);
  CHECK(with("sglang@0.5.3", false).max_num_seqs == 2048);
  CHECK(with("sglang@0.5.3", true, {.max_num_seqs = 100}).max_num_seqs == 100);
  CHECK_FALSE(with("sglang@0.5.3", true).schedules_ahead);
  CHECK(with("sglang@0.5.3", true, {.async_scheduling = true}).schedules_ahead);
  CHECK(with("sglang@0.5.3", false).schedules_ahead);
  CHECK(with("sglang", true).schedules_ahead);
  CHECK(with("sglang", true).max_num_seqs == 48);
  CHECK(with("vllm", true).max_num_seqs == with("vllm", false).max_num_seqs);
}

TEST_CASE("SGLang has pools for windows of few models, by release") {
  const auto has = [](const char* label, const char* model, const char* gpu = "H100-80GB-SXM",
                      bool speculates = false) {
    return with_options(find_stack(label), {}, {&find_gpu(gpu), &find_llm(model), 1, speculates})
        .window_pools;
  };
  CHECK_FALSE(has("sglang@0.5.7", "gpt-oss-120b"));
  CHECK(has("sglang@0.5.8", "gpt-oss-120b"));
  CHECK(has("sglang", "gpt-oss-20b"));
  CHECK_FALSE(has("sglang@0.5.9", "gpt-oss-120b", "B200"));  // trtllm_mha
  CHECK(has("sglang@0.5.10", "gpt-oss-120b", "B200"));
  CHECK_FALSE(has("sglang@0.5.9", "gpt-oss-120b", "H100-80GB-SXM", true));
  CHECK(has("sglang@0.5.10", "gpt-oss-120b", "H100-80GB-SXM", true));
  CHECK_FALSE(has("sglang@0.5.7", "llama-4-scout"));  // needs --hybrid-kvcache-ratio
  CHECK(has("sglang@0.5.8", "llama-4-scout"));
  for (const char* gemma : {"gemma-2-9b", "gemma-3-27b", "gemma-3-1b"}) {
    CHECK_FALSE(has("sglang@0.4.9", gemma));
    CHECK_FALSE(has("sglang", gemma));
  }
  CHECK(has("sglang@0.5.11", "gemma-4-31b"));
  CHECK(has("sglang", "mimo-v2.5"));
  CHECK_FALSE(has("sglang", "mistral-7b-v0.1"));
  CHECK(has("trtllm", "gemma-3-27b"));
}

TEST_CASE("SGLang: states of a request and the overlap schedule, by release and radix cache") {
  const auto with = [](const char* label, const char* model, const StackOptions& options = {},
                       bool caches = true, bool speculates = false) {
    EngineSite site{&find_gpu("H100-80GB-SXM"), &find_llm(model), 1, speculates};
    site.caches_prefixes = caches;
    return with_options(find_stack(label), options, site);
  };
  const char* const model = "qwen3-next-80b-a3b";
  CHECK(with("sglang@0.5.3", model).state_slots == 1);
  CHECK(with("sglang@0.5.3", model).state_sequences == 512);
  CHECK(with("sglang@0.5.3", model, {.max_num_seqs = 64}).state_sequences == 64);
  CHECK(with("sglang@0.5.3", model).schedules_ahead);
  CHECK_FALSE(with("sglang@0.5.3", model).prefix_caching.value());
  CHECK(with("sglang@0.5.4", model).state_slots == 3);
  CHECK(with("sglang@0.5.4", model).schedules_ahead);
  for (const char* label : {"sglang@0.5.6", "sglang@0.5.9", "sglang@0.5.13"}) {
    CHECK(with(label, model).state_slots == 3);
    CHECK(with(label, model).state_sequences == 0);
    CHECK_FALSE(with(label, model).schedules_ahead);
    CHECK(with(label, model, {}, false).schedules_ahead);
    CHECK(with(label, model, {}, false).state_slots == 1);
    CHECK(with(label, model, {.max_num_seqs = 9}, false).state_sequences == 9);
  }
  CHECK(with("sglang@0.5.8", model, {}, false).state_sequences == 512);
  CHECK(with("sglang@0.5.9", model, {}, false).state_sequences == 0);
  CHECK(with("sglang@0.5.14", model).state_slots == 5);
  CHECK(with("sglang@0.5.14", model).schedules_ahead);
  CHECK(with("sglang@0.5.14", model, {.async_scheduling = false}).state_slots == 3);
  CHECK(with("sglang@0.5.9", model, {}, true, true).state_slots == 1);
  CHECK(with("sglang@0.5.9", model, {}, true, true).state_sequences == 48);
  // Models that the radix cache does not support, and models without extra buffers.
  CHECK(with("sglang@0.5.13", "kimi-linear-48b-a3b").state_slots == 1);
  CHECK(with("sglang@0.5.13", "kimi-linear-48b-a3b").schedules_ahead);
  CHECK_FALSE(with("sglang@0.5.14", "kimi-linear-48b-a3b").schedules_ahead);
  CHECK(with("sglang@0.5.16", "kimi-linear-48b-a3b").state_slots == 5);
  CHECK(with("sglang@0.5.6", "nemotron-h-56b").state_slots == 1);
  CHECK(with("sglang@0.5.7", "nemotron-h-56b").state_slots == 3);
  CHECK_FALSE(with("sglang", "lfm2-1.2b").schedules_ahead);
  CHECK(with("sglang@0.5.9", "qwen3-8b").state_slots == 0);
  CHECK(with("sglang@0.5.9", "qwen3-8b").schedules_ahead);
}

TEST_CASE(
    "vLLM since 0.14 schedules ahead without n-grams, and since 0.20 whole prompts have to fit") {
  const auto with = [](const char* label, bool looks_up, const StackOptions& options = {}) {
    return with_options(
        find_stack(label), options,
        {&find_gpu("H100-80GB-SXM"), &find_llm("llama-3.1-8b"), 1, looks_up, looks_up});
  };
  CHECK(with("vllm@0.14", false).schedules_ahead);
  CHECK_FALSE(with("vllm@0.14", true).schedules_ahead);
  CHECK(with("vllm", true, {.async_scheduling = true}).schedules_ahead);
  CHECK_FALSE(with("vllm@0.13", false).schedules_ahead);
  CHECK_FALSE(with("vllm@0.19", false).reserves_full_prompt);
  CHECK(with("vllm@0.20", false).reserves_full_prompt);
  CHECK(with("vllm", false).reserves_full_prompt);
  CHECK_FALSE(with("sglang", false).reserves_full_prompt);
}

TEST_CASE("SGLang reserves memory for drafts, by release and proposer") {
  const auto reserve = [](const char* label, bool speculates, bool looks_up = false,
                          bool draft_model = false) {
    const Gpu& gpu = find_gpu("H100-80GB-SXM");
    EngineSite site{&gpu, &find_llm("qwen3-8b"), 1, speculates, looks_up};
    site.draft_model = draft_model;
    const double share = with_options(find_stack(label), {}, site).usable_fraction;
    return (1 - share) * static_cast<double>(gpu.hbm.count()) / (1024.0 * 1024 * 1024);
  };
  // Shares of 80 GiB are rounded to three decimals.
  const auto gib = [](double n) { return doctest::Approx(n).epsilon(0.005); };
  for (const auto& [label, head, model] :
       {std::tuple{"sglang@0.5.2", 2.0, 6.0}, std::tuple{"sglang@0.5.9", 2.0, 6.0},
        std::tuple{"sglang@0.5.10", 4.0, 6.0}, std::tuple{"sglang@0.5.13", 4.0, 6.0},
        std::tuple{"sglang@0.5.14", 0.0, 0.0}}) {
    INFO(label);
    const double plain = reserve(label, false);
    CHECK(reserve(label, true) == gib(plain + head));
    CHECK(reserve(label, true, false, true) == gib(plain + model));
    CHECK(reserve(label, true, true) == gib(plain));  // n-grams
  }
  CHECK(reserve("sglang@0.4.8", true, false, true) == gib(reserve("sglang@0.4.8", false) + 2));
}

TEST_CASE("SGLang's decode steps beyond the captured CUDA graphs are launched by the host") {
  const auto limit = [](const char* label, const char* gpu, std::int32_t gpus = 1) {
    return with_options(find_stack(label), {}, {&find_gpu(gpu), &find_llm("qwen3-8b"), gpus})
        .graph_sequences;
  };
  CHECK(limit("sglang@0.4.3", "H200-141GB-SXM") == 160);
  CHECK(limit("sglang@0.4.3", "L4") == 8);
  CHECK(limit("sglang@0.4.3", "L4", 4) == 80);
  CHECK(limit("sglang@0.4.7", "H200-141GB-SXM") == 256);
  CHECK(limit("sglang@0.4.7", "B200") == 512);
  CHECK(limit("sglang@0.5.2", "H100-80GB-SXM", 8) == 160);
  CHECK(limit("sglang@0.5.2", "H200-141GB-SXM") == 256);
  CHECK(limit("sglang@0.5.2", "B200") == 512);
  CHECK(limit("sglang@0.5.2", "RTX-5090") == 8);
  CHECK(limit("sglang@0.5.3", "H100-80GB-SXM") == 256);
  CHECK(limit("sglang@0.5.3", "H100-80GB-SXM", 4) == 512);
  CHECK(limit("vllm", "H100-80GB-SXM") == 0);

  const Stack sglang = on("sglang@0.5.2", "H100-80GB-SXM");
  CHECK(is_captured(sglang, 1));
  CHECK(is_captured(sglang, 159));  // padded
  CHECK_FALSE(is_captured(sglang, 161));
  CHECK(host_per_layer(sglang, 160, false) == Seconds{});
  CHECK(host_per_layer(sglang, 161, false) == sglang.eager_per_layer);
  CHECK(host_per_layer(sglang, 161, true) == Seconds{});  // no data for prompts
  CHECK(is_captured(on("sglang@0.5.2", "H100-80GB-SXM", {.graph_sequences = 200}), 161));
  // More graphs use more of the reserve, 2 MiB each.
  CHECK(on("sglang@0.5.3", "L40S", {.graph_sequences = 512}).usable_fraction <
        on("sglang@0.5.3", "L40S").usable_fraction);
}

TEST_CASE("TensorRT-LLM since 1.0 runs as graphs only decode steps of captured sizes") {
  const Stack trtllm = on("trtllm", "H100-80GB-SXM");
  for (const std::int64_t n : {1, 31, 32, 64, 128}) CHECK(is_captured(trtllm, n));
  for (const std::int64_t n : {33, 63, 65, 127, 129, 256}) CHECK_FALSE(is_captured(trtllm, n));
  CHECK(host_per_layer(trtllm, 33, false) == Seconds{0.29e-3});
  CHECK(host_per_layer(trtllm, 1, true) == Seconds{0.29e-3});
  const Stack padded =
      on("trtllm", "H100-80GB-SXM", {.graph_sequences = 300, .graph_padding = true});
  CHECK(is_captured(padded, 33));
  CHECK_FALSE(is_captured(padded, 301));
  const Stack exact = on("trtllm", "H100-80GB-SXM", {.graph_sequences = 300});
  CHECK(is_captured(exact, 256));
  CHECK(is_captured(exact, 300));
  CHECK_FALSE(is_captured(exact, 299));
  // Compiled engines of releases before 1.0 have no such host time, regardless of captured graphs.
  CHECK(host_per_layer(on("trtllm@0.20", "H100-80GB-SXM", {.cuda_graphs = false}), 33, true) ==
        Seconds{});
}

TEST_CASE("SGLang uses less GPU memory by default if it loads a vision encoder") {
  const auto share = [](const char* model, const StackOptions& options = {}) {
    return with_options(find_stack("sglang@0.5.6"), options,
                        {&find_gpu("H100-80GB-SXM"), &find_llm(model), 1})
        .usable_fraction;
  };
  // 0.95 x (1 - 0.1 x (1152^2 / 1024^2 - 1)) of a language model's share.
  CHECK(share("qwen3-vl-8b") == test::rel(share("qwen3-8b") * 0.95 * (1 - 0.1 * 0.265625)));
  CHECK(share("qwen3-vl-4b") == test::rel(share("qwen3-8b") * 0.95));  // 1,024 wide
  CHECK(share("qwen3-vl-8b", {.language_model_only = true}) == share("qwen3-8b"));
  CHECK(share("qwen3-vl-8b", {.memory_fraction = 0.8}) == 0.8);
}

TEST_CASE("LMDeploy's batch limit depends on the GPU's name and the version") {
  CHECK(on("lmdeploy", "A100-80GB-SXM").max_num_seqs == 384);
  CHECK(on("lmdeploy", "H100-80GB-SXM").max_num_seqs == 1024);
  CHECK(on("lmdeploy", "L40S").max_num_seqs == 128);
  CHECK(on("lmdeploy@0.9.2", "A100-80GB-SXM").max_num_seqs == 256);
  CHECK(on("lmdeploy@0.9.2", "H200-141GB-SXM").max_num_seqs == 128);
  CHECK(on("lmdeploy@0.5.3", "H100-80GB-SXM").max_num_seqs == 128);
}

TEST_CASE("vLLM's V0 engine cuts long prompts into passes that depend on its version") {
  CHECK(find_stack("vllm-v0@0.6.3").long_prefill_chunk == 512);
  CHECK(find_stack("vllm-v0@0.6.5").long_prefill_chunk == 2048);
  CHECK(find_stack("vllm-v0").long_prefill_chunk == 2048);
  CHECK(find_stack("vllm-v0@0.5.2").long_prefill_chunk == 0);
  CHECK(find_stack("vllm-v0").prefill_chunk == 0);
  const Stack cut = with_cut_prompts(on("vllm-v0@0.6.3", "A100-80GB-SXM"), 1);
  CHECK(cut.prefill_chunk == 512);
  CHECK(cut.settings->flags().starts_with("--max-num-batched-tokens 512 "));
}

TEST_CASE("user settings take precedence and the source of each value is reported") {
  const Stack plain = on("vllm@0.19", "RTX-4090");
  CHECK(plain.settings->flags() ==
        "--max-num-batched-tokens 2048 --max-num-seqs 256 --gpu-memory-utilization 0.9 "
        "--block-size 16");
  CHECK(setting(plain, "max_num_seqs").origin == "default of vLLM 0.19 for all other GPUs; server");
  CHECK(setting(on("vllm@0.19", "H100-80GB-SXM"), "max_num_seqs").origin ==
        "default of vLLM 0.19 for GPUs of at least 70 GiB, but not A100; server");
  for (const EngineSetting& s : plain.settings->settings) {
    INFO(s.key);
    CHECK_FALSE(s.by_user);
    CHECK_FALSE(s.source.empty());
  }
  const Stack mine = on("vllm@0.19", "RTX-4090",
                        {.max_num_seqs = 7,
                         .prefill_chunk = 1000,
                         .block_tokens = 32,
                         .memory_fraction = 0.5,
                         .cuda_graphs = false});
  CHECK(mine.prefill_chunk == 1000);
  CHECK(mine.max_num_seqs == 7);
  CHECK(mine.block_tokens == 32);
  CHECK(mine.usable_fraction == 0.5);
  CHECK(mine.settings->flags() ==
        "--max-num-batched-tokens 1000 --max-num-seqs 7 --gpu-memory-utilization 0.5 "
        "--block-size 32 --enforce-eager");
  for (const EngineSetting& s : mine.settings->settings) {
    INFO(s.key);
    CHECK(s.by_user);
    CHECK(s.origin == "set by the user");
  }
}

TEST_CASE("the tokens of an iteration limit the sequences that vLLM runs") {
  const Stack small = on("vllm@0.19", "H100-80GB-SXM", {.prefill_chunk = 512});
  CHECK(small.max_num_seqs == 512);
  CHECK(setting(small, "max_num_seqs").value == "512");
  CHECK(setting(small, "max_num_seqs").origin.ends_with(", at most max_num_batched_tokens"));
  CHECK(
      on("vllm@0.19", "H100-80GB-SXM", {.max_num_seqs = 512, .prefill_chunk = 512}).max_num_seqs ==
      512);
  CHECK_THROWS_WITH_AS(
      on("vllm@0.19", "H100-80GB-SXM", {.max_num_seqs = 513, .prefill_chunk = 512}),
      "engine: max_num_seqs: expected at most max_num_batched_tokens, 512 (else vLLM does not "
      "start), got 513",
      InputError);
  // V0 does not split prompts: the token limit of an iteration is at least the longest prompt.
  CHECK(on("vllm-v0@0.6", "H100-80GB-SXM", {.max_num_seqs = 4096}).max_num_seqs == 4096);
  CHECK(on("sglang", "H100-80GB-SXM", {.max_num_seqs = 4096, .prefill_chunk = 512}).max_num_seqs ==
        4096);
}

TEST_CASE("every GPU finds a default for each value in every version and usage") {
  for (const Stack& stack : builtin_stacks()) {
    if (!stack.defaults) continue;
    std::set<EngineVersion> versions{stack.defaults->first_version, stack.defaults->last_version};
    for (const DefaultsRule& rule : stack.defaults->rules) {
      CHECK_FALSE(rule.source.empty());
      if (rule.from) versions.insert(*rule.from);
      if (rule.before) versions.insert(*rule.before);
    }
    for (const EngineVersion& v : versions) {
      if (!stack.defaults->knows(v)) continue;
      for (const char* usage : {"server", "llm"}) {
        const std::string label =
            fmt::format("{}@{}.{}.{}:{}", stack.name, v[0], v[1], v[2], usage);
        for (const Gpu& gpu : builtin_gpus()) {
          if (stack.needs_cuda && !is_nvidia(gpu)) continue;
          for (const std::int32_t gpus : {1, 8}) {
            for (const char* llm : {kDense, kExperts, "deepseek-v3"}) {
              INFO(label << " on " << gpus << " x " << gpu.name << ", " << llm);
              const Stack run = on(label, gpu.name, {}, gpus, llm);
              std::set<std::string> keys;
              for (const EngineSetting& s : run.settings->settings) keys.insert(s.key);
              CHECK((run.prefill_chunk == 0 || keys.contains("prefill_chunk")));
              CHECK(keys.contains("max_num_seqs"));
              CHECK(keys.contains("usable_fraction"));
              CHECK(keys.contains("block_tokens"));
              CHECK(run.usable_fraction > 0.5);
              CHECK(run.usable_fraction < 1);
              CHECK(run.sources.contains("max_num_seqs"));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the error for an unknown version lists the known ones") {
  CHECK(
      complaint("vllm@0.99") ==
      "expected a version of vLLM from 0.8 to 0.30, got \"0.99\"; its defaults are not known yet: "
      "use \"vllm@0.30\" and set the options that your release changed");
  CHECK(complaint("trtllm@1.3").find("use \"trtllm@1.2\"") != std::string::npos);
  CHECK(complaint("lmdeploy@0.17").find("use \"lmdeploy@0.16\"") != std::string::npos);
  CHECK(complaint("vllm-v0@0.9").find("versions 0.8 to 0.30 are stack \"vllm\"") !=
        std::string::npos);
  CHECK(complaint("vllm@0.6.3").find("versions 0.2 to 0.7 are stack \"vllm-v0\"") !=
        std::string::npos);
  CHECK(complaint("vllm@new").starts_with("expected a version of vLLM from 0.8 to 0.30"));
  CHECK(complaint("vllm@") == "stack \"vllm@\": expected a version after \"@\"");
  CHECK(complaint("vllm:") == "stack \"vllm:\": expected server or llm after \":\"");
  CHECK(complaint("vllm:offline") ==
        "stack \"vllm\": expected usage server or llm, got \"offline\"");
  CHECK(complaint("hf-sdpa@1").starts_with("stack \"hf-sdpa\" has no versions"));
  CHECK(complaint("vlm@0.19").starts_with("unknown stack \"vlm\""));
}

TEST_CASE("a label names version and usage and omits defaults") {
  CHECK(label_of(find_stack("vllm")) == "vllm");
  CHECK(label_of(find_stack("vllm@0.30")) == "vllm");
  CHECK(label_of(find_stack("vllm:server")) == "vllm");
  CHECK(label_of(find_stack("vllm@v0.19")) == "vllm@0.19");
  CHECK(label_of(find_stack("vllm@0.19:llm")) == "vllm@0.19:llm");
  CHECK(label_of(find_stack("hf-sdpa")) == "hf-sdpa");
  CHECK(&find_stack("vllm@0.19") == &find_stack("vllm@0.19"));
  CHECK(find_stack("vllm@0.19").name == "vllm");
}

TEST_CASE("versions are numbers with dots and release suffixes") {
  CHECK(parse_engine_version("0.19") == EngineVersion{0, 19, 0});
  CHECK(parse_engine_version("v0.8.5.post1") == EngineVersion{0, 8, 5});
  CHECK(parse_engine_version("1.0rc4") == EngineVersion{1, 0, 0});
  for (const char* bad : {"", "0", "1.", ".1", "0.19.1.2", "0.x", "0.19-dev", "99999.1", "0.1 "}) {
    INFO(bad);
    CHECK_FALSE(parse_engine_version(bad).has_value());
  }
}

}  // namespace
}  // namespace kvsim
