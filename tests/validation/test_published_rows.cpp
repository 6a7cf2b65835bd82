// A table of published values small enough to check by hand, and broken tables.

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/published/published_csv.hpp"
#include "validation/published/published_methods.hpp"
#include "validation/published/published_reasons.hpp"
#include "validation/published/published_score.hpp"
#include "validation/published/published_stacks.hpp"

namespace kvsim {
namespace {

using test::rel;

const std::string kHeader =
    "id,source,gpu,gpu_count,model,dtype,kv_dtype,framework,method,method_params,batch,prompt_len,"
    "output_len,metric,value,unit,note\n";

PublishedScore score_of(const std::string& lines) {
  return score_published(parse_published_csv(kHeader + lines, "small.csv"));
}

const PublishedGroup& pooled(const PublishedScore& score, const std::string& name) {
  const auto found =
      std::find_if(score.pooled.begin(), score.pooled.end(),
                   [&](const PublishedGroup& g) { return g.metric == name && !g.inconsistent; });
  REQUIRE(found != score.pooled.end());
  return *found;
}

TEST_CASE("known answers: weights, cache, an attention kernel's out-of-scope row") {
  // Llama-2-7B: 6,738,415,616 parameters; 2 x 32 layers x 32 heads x 128 elements per token, so 1
  // MiB in fp32. 1000 tokens: 1000 / 1024 GiB.
  const PublishedScore score = score_of(
      "a,paper,A800-80GB,1,Llama-2-7B,fp32,fp32,HF transformers,full,,1,,,weights_gb,25,GiB,\n"
      "b,paper,A800-80GB,1,Llama-2-7B,fp32,fp32,HF transformers,full,,1,1000,0,kv_cache_gb,1,GiB,\n"
      "c,paper,A800-80GB,1,Llama-2-7B,fp32,fp32,HF transformers,full,,1,,,kv_bytes_per_token,1,"
      "MB/token,\n"
      "d,paper,A100-80GB,1,attention kernel,fp16,fp16,x,attention fwd+bwd,,,512,,attention_tflops,"
      "99,TFLOP/s,\n");
  REQUIRE(score.rows.size() == 4);
  CHECK(*score.rows[0].prediction.value == rel(6738415616.0 * 4 / 1073741824.0));
  CHECK(*score.rows[1].prediction.value == rel(1000.0 / 1024.0));
  CHECK(*score.rows[2].prediction.value == rel(1.0));
  CHECK_FALSE(score.rows[3].prediction.expressed());
  CHECK(score.rows[3].out_of_scope == "training, not inference");
  CHECK(score.n_in_scope == 3);
  CHECK(score.n_in_scope_expressed == 3);
  const PublishedGroup& cache = pooled(score, "all cache size");
  CHECK(cache.n == 2);
  CHECK(*cache.mape == rel((24.0 / 1024.0 + 0) / 2));
  CHECK(*cache.bias == rel(-(24.0 / 1024.0) / 2));
}

TEST_CASE("an engine's capacity follows from the cache memory that the same start printed") {
  // Qwen3.5-27B in fp8: blocks of 1,568 tokens of 2,048 B in groups of 16 layers, 153 in 7.33 GiB;
  // a request of 196,608 tokens takes 126 blocks and two states in each of three groups: 153 *
  // 196,608 / 132.
  const std::string start =
      "log 1,RTX 5090,1,Qwen3.5-27B,4-bit,fp8,vLLM 0.26,full,max_model_len "
      "196608; TP1,,196608,,";
  const std::string memory =
      "log 1,RTX 5090,1,Qwen3.5-27B,4-bit,fp8,vLLM 0.26,full,max_model_len 196608; TP1,,,,"
      "available_kv_cache_memory,7.33,GiB per GPU,\n";
  const PublishedScore score = score_of(
      "a," + start + "gpu_kv_cache_size,227886,tokens,\nb," + start +
      "max_concurrency,1.16,x,\nc," + start + "attention_block_size,1568,tokens,\nd," + memory +
      // Another start, whose memory is not stated in any row; and settings in a note.
      "e,log 2,not stated,1,Qwen3.5-27B,4-bit,fp8,vLLM 0.26,full,max_model_len "
      "4096,,,,gpu_kv_cache_size,1,tokens,block 64\n"
      "f,log 2,RTX 5090,1,Qwen3.5-27B,4-bit,odd,vLLM 0.26,full,,,,,gpu_kv_cache_size,1,"
      "tokens,\n"
      // Figures of a start that does not state its memory follow from one another.
      "g,log 3,not stated,1,27B GDN hybrid (19 GiB),4-bit,fp8,\"vLLM, Aug 2026\",full,TP1,,196608,,"
      "max_concurrency,1.16,x,\n"
      "h,log 3,not stated,1,27B GDN hybrid (19 GiB),4-bit,fp8,\"vLLM, Aug 2026\",full,TP1,,196608,,"
      "gpu_kv_cache_size,227886,tokens,\n"
      // The memory left by the weights on a GPU.
      "i,log 4,L4,1,Qwen3-4B,bf16,bf16,vLLM 0.25.1,full,gpu_memory_utilization 0.9; max_num_seqs "
      "16,,,,available_kv_cache_memory,11.5,GiB per GPU,\n");
  REQUIRE(score.rows.size() == 9);
  CHECK(*score.rows[0].prediction.value == 153LL * 196'608 / 132);
  CHECK(*score.rows[1].prediction.value == rel(153.0 / 132));
  CHECK(*score.rows[2].prediction.value == 1568);
  // 153 blocks of 1,568 tokens and 16 layers.
  CHECK(*score.rows[3].prediction.value == rel(153.0 * 1568 * 2048 * 16 / (1 << 30)));
  CHECK(score.rows[4].prediction.reason == "neither the cache memory of this start nor its GPU");
  CHECK(score.rows[5].prediction.reason == "no format in kv_dtype \"odd\"");
  CHECK(*score.rows[6].prediction.value == rel(227'886.0 / 196'608));
  CHECK(*score.rows[7].prediction.value == std::floor(1.16 * 196'608));
  CHECK(score.rows[7].prediction.assumed.size() == 2);  // the model's class, and the basis
  CHECK(*score.rows[8].prediction.value == rel(11.5, 0.05));
  // The GPU need not be in the catalogue.
  CHECK(score.rows[0].in_scope);
  CHECK(pooled(score, "all engine cache").n == 7);
}

TEST_CASE("a checkpoint stored in fp32 is not computed in it by kernels of 8 bits") {
  // GPT-J's is stored in fp32. Its 28 layers of 4096 are slightly less work than the 32 of
  // Llama-2-7B; attention and norms in fp32 would take 1.5 times as long.
  const auto row = [](const char* model) {
    return fmt::format(
        "{},paper,H100-80GB,1,{},fp8,fp8,TensorRT-LLM,full,,1,2048,1,ttft_ms,29,ms,\n", model,
        model);
  };
  const PublishedScore score = score_of(row("GPT-J-6B") + row("Llama-2-7B"));
  REQUIRE(score.rows.size() == 2);
  const double ratio = *score.rows[0].prediction.value / *score.rows[1].prediction.value;
  CHECK(ratio > 0.75);
  CHECK(ratio < 1);
}

TEST_CASE("prompts alone: latency, throughput and a layer's share of it are of one prefill") {
  const std::string setup =
      ",paper,A100-80GB-SXM,1,Llama-2-7B,fp16,fp16,HF transformers,full,,1,8K,";
  const PublishedScore score = score_of(
      "a" + setup + "0,ttft_s,1,s,\n" + "b" + setup + "prefill,latency_s,1,s,\n" + "c" + setup +
      "prefill only,prefill_latency_ms,1,ms,\n" + "d" + setup +
      "prompt,throughput_tok_s,1,tok/s,\n" + "e" + setup + "prefill,latency_ms_per_layer,1,ms,\n" +
      "f" + setup + "decode,latency_ms_per_layer,1,ms,\n" + "g" + setup +
      "decode,latency_ms_per_token,1,ms,\n" + "h" + setup + "prefill,latency_ms_per_token,1,ms,\n");
  const auto value = [&](std::size_t row) { return *score.rows[row].prediction.value; };
  const double seconds = value(0);
  CHECK(value(1) == rel(seconds));
  CHECK(value(2) == rel(1e3 * seconds));
  CHECK(value(3) == rel(8192 / seconds, 0.03));  // 8K is 8,000 or 8,192 tokens
  CHECK(value(4) == rel(1e3 * seconds / 32));
  CHECK(value(5) == rel(value(6) / 32));
  CHECK_FALSE(score.rows[7].prediction.value);
}

TEST_CASE("transformers on two GPUs: the memory of both, the time of one") {
  const auto two = [](const std::string& gpus, const std::string& metric) {
    const PublishedScore score = score_of(
        "a,paper,A100-80GB-SXM," + gpus +
        ",Llama-2-7B,fp16,fp16,HF transformers SDPA,full,,4,2000,101," + metric + ",1,GiB,\n");
    return *score.rows[0].prediction.value;
  };
  // The same weights and cache, and a layer's activations on the second GPU too.
  const double more = two("2", "peak_mem_gb") - two("1", "peak_mem_gb");
  CHECK(more > 0);
  CHECK(more < 0.1 * two("1", "peak_mem_gb"));
  CHECK(two("2", "latency_s") == rel(two("1", "latency_s"), 0.02));
}

TEST_CASE("weights in host memory: runs that Accelerate and ZeRO-Inference make are not refused") {
  const auto step = [](const std::string& framework) {
    const PublishedScore score =
        score_of("a,paper,A100-80GB-SXM,1,Llama-2-70B,fp16,fp16," + framework +
                 ",full,,1,512,decode,latency_ms_per_token,1,ms,\n");
    REQUIRE(score.rows[0].prediction.value);
    return *score.rows[0].prediction.value;
  };
  // 80 layers of 1.71 GB over 32 GB/s: 4.3 s; for about 38 layers that do not fit on the GPU, 2.0
  // s.
  CHECK(step("DeepSpeed ZeRO-Inference") > 4300);
  CHECK(step("DeepSpeed ZeRO-Inference") < 5600);
  CHECK(step("Hugging Face Accelerate") > 1700);
  CHECK(step("Hugging Face Accelerate") < 2600);
}

TEST_CASE(
    "verdicts: a run that fits, one that does not, and a value of a run predicted not to fit") {
  const std::string setup = ",A800-80GB,1,Llama-2-7B,fp16,fp16,HF transformers SDPA,full,,";
  // fp16: 12.6 GiB of weights and 0.5 MiB per token: 80,000 tokens are 39 GiB, 200,000 are 98 GiB.
  const PublishedScore score =
      score_of("a,paper" + setup + "1,80K,decode,oom,0,bool,\n" + "b,paper" + setup +
               "1,200K,decode,oom,1,bool,\n" + "c,paper" + setup + "1,200K,decode,oom,0,bool,\n" +
               "d,paper" + setup + "1,200K,decode,latency_ms_per_token,50,ms,\n");
  CHECK(score.rows[0].prediction.runs_out == false);
  CHECK(score.rows[1].prediction.runs_out == true);
  CHECK(score.rows[3].prediction.runs_out == true);
  CHECK_FALSE(score.rows[3].prediction.value);
  const PublishedGroup& all = pooled(score, "all");
  CHECK(all.oom_right == 2);
  CHECK(all.oom_total == 4);
  CHECK(all.n_expressed == 4);
  CHECK(all.n == 0);
}

TEST_CASE("pooled values pool rows and rows that contradict themselves are separate") {
  const std::string setup = ",A800-80GB,1,Llama-2-7B,fp32,fp32,HF transformers,full,,1,1024,0,";
  const PublishedScore score = score_of("a,p" + setup + "kv_cache_gb,2,GiB,\n" +    // -50 %
                                        "b,p" + setup + "kv_cache_gb,0.8,GiB,\n" +  // +25 %
                                        "c,p" + setup + "kv_cache_gb,1,GiB,\n" + "d,p" + setup +
                                        "kv_cache_gb,9,GiB,INCONSISTENT: ninefold\n");
  const PublishedGroup& group = pooled(score, "kv_cache_gb");
  CHECK(group.n == 3);
  CHECK(*group.mape == rel(0.25));
  CHECK(*group.median_ape == rel(0.25));
  CHECK(*group.p90_ape == rel(0.45));  // 0.8 of the way from 25 to 50 %
  CHECK(*group.bias == rel(-0.25 / 3));
  CHECK(score.pooled.back().inconsistent);
  CHECK(score.pooled.back().n_total == 1);
  std::size_t rows = 0;
  for (const PublishedGroup& g : score.groups) rows += g.n_total;
  CHECK(rows == score.rows.size());
}

TEST_CASE("a reason applies only to rows of its document and a stack's times are separate") {
  const std::string setup =
      ",A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers SDPA,full,,1,1024,0,";
  const PublishedScore score =
      score_of("RK-001,github Zefan-Cai/R-KV README" + setup + "ttft_s,1000,s,\n" + "RK-002,paper" +
               setup + "ttft_s,1000,s,\n" + "RK-003,paper" + setup + "kv_cache_gb,0.5,GiB,\n");
  REQUIRE(score.rows.size() == 3);
  CHECK(misses_badly(score.rows[0]));
  REQUIRE(find_reason(score.rows[0]) != nullptr);
  CHECK(find_reason(score.rows[0])->document == "github Zefan-Cai/R-KV");
  CHECK(misses_badly(score.rows[1]));
  CHECK(find_reason(score.rows[1]) == nullptr);
  CHECK_FALSE(misses_badly(score.rows[2]));
  REQUIRE(score.stacks.size() == 1);
  CHECK(score.stacks[0].stack == "hf-sdpa");
  CHECK(score.stacks[0].n == 2);
  CHECK(find_stack_reason("sglang") != nullptr);
  CHECK(find_stack_reason("ideal") == nullptr);
}

TEST_CASE("inexpressible rows have a reason and never crash") {
  const std::string tail = ",fp16,fp16,HF transformers,full,,1,1000,10,";
  const PublishedScore score = score_of(
      "a,p,X9000,1,Llama-2-7B" + tail + "latency_s,1,s,\n" + "b,p,A100-80GB,1,Nonsense-3T" + tail +
      "latency_s,1,s,\n" + "c,p,A100-80GB,1,Llama-2-7B" + tail + "latency_s,fast,s,\n" +
      "d,p,A100-80GB,some,Llama-2-7B" + tail + "latency_s,1,s,\n" + "e,p,A100-80GB,1,Llama-2-7B" +
      tail + "joy_per_token,1,x,\n" +
      "f,p,A100-80GB,1,Llama-2-7B,fp16,fp16,Unheard Of,full,,1,1000,10,latency_s,1,s,\n" +
      "g,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,Unheard,,1,1000,10,latency_s,1,s,\n" +
      "h,p,A100-80GB,1,Llama-2-7B,odd,odd,HF transformers,full,,1,1000,10,latency_s,1,s,\n" +
      "i,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,full,,many,1000,10,latency_s,1,s,\n" +
      "j,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,full,,1,LongBench,10,latency_s,1,s,\n" +
      "k,p,A100-80GB,1,Llama-2-7B" + tail + "peak_mem_gb,1,furlongs,\n" +
      "l,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,H2O,5% of nothing 99999999999,1,1000,"
      "10,latency_s,-0,s,\n" +
      "m,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF "
      "transformers,full,,999999999,10M,10,latency_s,1,s,\n" +
      "n,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,full,,1,10,100M,latency_s,1,s,\n" +
      "o,p,A100-80GB,1,Llama-2-7B,fp16,fp16,HF transformers,full,,max that "
      "fits,10,900K,latency_s,1,"
      "s,\n");
  for (const ScoredRow& row : score.rows) {
    INFO(row.row.id, ": ", row.prediction.reason);
    if (row.row.id == "l") continue;
    CHECK_FALSE(row.prediction.expressed());
    CHECK_FALSE(row.prediction.reason.empty());
  }
  CHECK(score.rows[0].prediction.reason.find("X9000") != std::string::npos);
  CHECK_FALSE(score.rows[0].in_scope);
  CHECK_FALSE(score.rows[2].in_scope);
  CHECK_FALSE(score.rows[3].in_scope);
  CHECK(score.rows[5].in_scope);  // an unknown framework is a gap of kvsim, not of the row
}

TEST_CASE("a broken table is refused at its place") {
  const auto message = [](const std::string& text) -> std::string {
    try {
      (void)parse_published_csv(text, "t.csv");
    } catch (const InputError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(message("").starts_with("t.csv: "));
  CHECK(message("id,source\n").find("a column \"gpu\"") != std::string::npos);
  CHECK(message(kHeader + "a,b\n").starts_with("t.csv:2: expected 17 cells"));
  CHECK(message(kHeader + "\"a\nb").starts_with("t.csv:2: expected a closing quote"));
  CHECK(message(kHeader + "\"a\"b,").starts_with("t.csv:2: expected a comma"));
  CHECK(message("id," + kHeader).find("several") != std::string::npos);
  CHECK_THROWS_AS((void)read_published_csv("/no/such/file.csv"), InputError);
}

TEST_CASE("quotes, line ends and columns in another order") {
  std::string text = "\xEF\xBB\xBFnote,extra," + kHeader.substr(0, kHeader.size() - 6) + "\r\n";
  text += "\"one, \"\"two\"\"\nthree\",-,i,s,g,1,m,d,k,f,me,mp,b,p,o,oom,1,bool\r\n\r\n";
  const auto rows = parse_published_csv(text, "t.csv");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].note == "one, \"two\"\nthree");
  CHECK(rows[0].id == "i");
  CHECK(rows[0].unit == "bool");
  CHECK(rows[0].line == 2);
}

TEST_CASE("methods by their published names and words") {
  const auto spec = [](const char* name, const char* params, std::int64_t prompt = 1000) {
    const MethodMatch match = match_method(name, params, "", prompt);
    REQUIRE(match.spec);
    return *match.spec;
  };
  CHECK(spec("full (paged)", "").name == "full");
  CHECK(spec("MQA", "").name == "full");
  const MethodSpec rkv = spec("R-KV", "budget 1024, buffer 128");
  CHECK(rkv.name == "r-kv");
  CHECK(rkv.budget->entries == 1024);
  CHECK(std::get<std::int64_t>(rkv.params.at("divide_length")) == 128);
  CHECK(spec("R-KV", "10% (819), buffer 128").budget->entries == 819);
  CHECK(spec("H2O", "20% heavy hitters").budget->fraction == rel(0.2));
  CHECK(spec("ZeroMerge", "cache ratio 5% of prompt (repo: x), alpha=0.6 lambda=0.98")
            .budget->fraction == rel(0.05));
  CHECK(std::get<double>(spec("ZeroMerge", "alpha=0.6 lambda=0.9").params.at("decay")) == rel(0.9));
  CHECK(std::get<double>(spec("KnormPress", "compression_ratio 0.3").params.at("ratio")) ==
        rel(0.3));
  CHECK(std::get<double>(
            spec("DuoAttention", "25% retrieval heads").params.at("streaming_fraction")) ==
        rel(0.75));
  CHECK(std::get<std::int64_t>(
            spec("ShadowKV", "sparse budget 1.56%, rank 160", 100'000).params.at("token_budget")) ==
        1560);
  CHECK(spec("StreamingLLM", "cache 256 (4 sinks)").budget->entries == 256);
  CHECK(spec("MiniCache-4bit", "gamma=0.05").name == "minicache+kivi-4");
  CHECK(spec("QuantizedCache int2", "backend quanto").name == "quanto-4");
  CHECK(std::get<std::int64_t>(spec("QuantizedCache int2", "").params.at("bits")) == 2);
  CHECK(spec("quantized cache (4-bit)", "backend HQQ, residual_length=64").name == "hqq-4");
  CHECK(match_method("sliding window re-computation", "window 256", "", 256).recomputes_window);
  CHECK_FALSE(match_method("Unheard Of", "", "", 1).spec);
}

TEST_CASE("frameworks by patterns, versions and dates") {
  const auto stack = [](const char* framework, const char* source = "", const char* note = "",
                        AttentionPatch patch = AttentionPatch::kNone) -> std::string {
    PublishedRow row;
    row.framework = framework;
    row.source = source;
    row.note = note;
    const StackMatch match = match_stack(row, patch);
    return match.stack != nullptr ? match.stack->name : match.reason;
  };
  CHECK(stack("HF transformers 4.46.0 + FA 2.5.8") == "hf-flash");
  // A list of packages, for versions whose two paths differ; and the name of the attention.
  CHECK(stack("HF transformers 4.51.3 + FA 2.7.4") == "hf-sdpa");
  CHECK(stack("HF transformers 4.51.3 + FA2") == "hf-flash");
  CHECK(stack("HF transformers + flash_attention_2 + kvpress") == "hf-flash");
  CHECK(stack("HF transformers, PyTorch 2.0 SDPA") == "hf-sdpa");
  CHECK(stack("HF transformers (2024-05) eager, DynamicCache") == "hf-eager");
  // torch.cat of 16-bit rows.
  CHECK(stack("HF transformers, PyTorch 2.8 SDPA") == "hf-sdpa-torch28");
  CHECK(stack("HF transformers + flash_attention_2", "a paper arXiv 2512.01234") ==
        "hf-flash-torch28");
  CHECK(stack("HF transformers + flash_attention_2", "a paper arXiv 2512.01234", "torch 2.6") ==
        "hf-flash");
  CHECK(stack("HF transformers + flash_attention_2", "a paper arXiv 2505.24133") == "hf-flash");
  // Weights in host memory.
  CHECK(stack("DeepSpeed ZeRO-Inference") == "zero-inference");
  CHECK(stack("Hugging Face Accelerate") == "hf-sdpa");
  CHECK(stack("HF transformers", "", "", AttentionPatch::kReadsScores) == "hf-eager");
  CHECK(stack("HF transformers", "", "", AttentionPatch::kMasks) == "hf-masked");
  CHECK(stack("vLLM 0.6.3", "", "", AttentionPatch::kMasks) == "vllm-v0");
  CHECK(stack("").find("no framework") != std::string::npos);
  CHECK(stack("Unheard Of").find("Unheard Of") != std::string::npos);
  CHECK(arxiv_month("StreamingLLM paper arXiv 2309.17453 Fig. 10") == 2309);
  CHECK_FALSE(arxiv_month("some paper"));
  PublishedRow old;
  old.framework = "HF transformers 4.37 (flash-attn)";
  CHECK(match_stack(old, AttentionPatch::kNone).all_logits);
  old.framework = "HF transformers 4.46 (flash-attn)";
  CHECK_FALSE(match_stack(old, AttentionPatch::kNone).all_logits);
}

TEST_CASE("engines run in the version that a row names or that its thread's number implies") {
  const auto label = [](const std::string& framework, const std::string& source = "a paper",
                        const std::string& note = "") {
    PublishedRow row;
    row.framework = framework;
    row.source = source;
    row.note = note;
    return label_of(*match_stack(row, AttentionPatch::kNone).stack);
  };
  CHECK(label("vLLM 0.6.3") == "vllm-v0@0.6.3");
  CHECK(label("vLLM", "a repository", "vLLM 0.11, block 128") == "vllm@0.11.0");
  CHECK(label("SGLang 0.4.6.post1") == "sglang@0.4.6");
  CHECK(label("TensorRT-LLM 1.0 PyTorch backend") == "trtllm@1.0.0");
  CHECK(label("TensorRT-LLM 0.6.1") == "trtllm@0.10");  // the oldest known
  // Threads of vLLM's repository: 10544 and 17885 changed defaults, with 0.6.5 and 0.9.
  CHECK(label("vLLM", "github vllm-project/vllm PR 10511") == "vllm-v0@0.5.3");
  CHECK(label("vLLM", "github vllm-project/vllm PR 12126") == "vllm-v0@0.6.5");
  CHECK(label("vLLM", "github vllm-project/vllm issue 21348") == "vllm@0.9");
  // Nothing is stated: the newest known version.
  CHECK(label("SGLang") == "sglang");
}

TEST_CASE("released code that drops entries runs one sequence and masks them for batches") {
  const auto patch = [](const char* method, std::int64_t batch) {
    return attention_patch(method, make_method({method, {}, {}}, 4096)->needs(), batch);
  };
  CHECK(patch("h2o", 1) == AttentionPatch::kReadsScores);
  CHECK(patch("h2o", 4) == AttentionPatch::kMasks);
  CHECK(patch("less", 1) == AttentionPatch::kMasks);
  CHECK(patch("zeromerge", 8) == AttentionPatch::kNone);  // prefills in chunks by SDPA
  CHECK(patch("full", 8) == AttentionPatch::kNone);
}

TEST_CASE("settings that a document's legend explains apply to the row") {
  const auto row = [](const std::string& source, const std::string& note) {
    return score_of("a," + source +
                    ",A100-80GB,2,Qwen2.5-72B-Instruct,bf16,bf16,vLLM 0.6.3,full,,1,1,"
                    "2048,throughput_tok_s,18,tok/s," +
                    note + "\n")
        .rows.front();
  };
  const std::string legend = "github QwenLM/Qwen2.5 docs/source/benchmark/speed_benchmark.rst";
  // Two A100 can hold 135 GiB of weights at 0.98 of their memory, but not at vLLM's default of 0.9.
  const ScoredRow named = row(legend, "Setting 1");
  CHECK(named.prediction.value.has_value());
  CHECK(std::any_of(named.prediction.assumed.begin(), named.prediction.assumed.end(),
                    [](const std::string& text) {
                      return text.find("Setting 1: gpu_memory_utilization=0.98") !=
                             std::string::npos;
                    }));
  CHECK(row(legend, "Default").prediction.runs_out == true);
  CHECK(row("another document", "Setting 1").prediction.runs_out == true);
}

TEST_CASE("a linear causal mask avoids the mask of the full length squared") {
  const auto peak = [](const std::string& method) {
    const PublishedScore score = score_of(
        "a,paper,A100-80GB,1,Llama-3.1-8B,bf16,int8,\"PyTorch EAGER, static KV of full length + "
        "full causal mask\"," +
        method + ",cache_size 65536,1,short,200,peak_mem_gb,29.54,GB,\n");
    REQUIRE(score.rows.front().prediction.value.has_value());
    return *score.rows.front().prediction.value;
  };
  CHECK(peak("int8 KV") - peak("int8 KV + linear causal mask") ==
        rel(65536.0 * 65536.0 / 1e9, 1e-4));
}

TEST_CASE("rows that a source was fitted on") {
  const char* text =
      "fitted on X (published: QW-115 to QW-127, KP-059, KP-085), and Y (published: GF-001)";
  for (const char* id : {"QW-115", "QW-120", "QW-127", "KP-059", "KP-085", "GF-001"}) {
    INFO(std::string{id});
    CHECK(names_row(text, id));
  }
  for (const char* id : {"QW-114", "QW-128", "KP-060", "GF-002", "ZZ-120", "QW"}) {
    INFO(std::string{id});
    CHECK_FALSE(names_row(text, id));
  }
  CHECK_FALSE(names_row("QW-115 without the mark", "QW-115"));
}

TEST_CASE("models by aliases, endings, families and lists") {
  std::string assumed;
  CHECK(models_named("Meta-Llama-3-8B", assumed).front()->name == "llama-3-8b");
  CHECK(models_named("Yi-6B-Chat", assumed).front()->name == "yi-6b");
  CHECK(assumed.empty());
  CHECK(models_named("Mistral-7B", assumed).front()->name.starts_with("mistral-7b"));
  CHECK_FALSE(assumed.empty());
  const auto several = models_named("avg of Llama3.1-8B, Mistral-7B, Qwen2.5-7B", assumed);
  REQUIRE(several.size() == 3);
  CHECK(several[2]->name == "qwen2.5-7b");
  CHECK_THROWS_AS((void)models_named("Nonsense-3T", assumed), InputError);
}

}  // namespace
}  // namespace kvsim
