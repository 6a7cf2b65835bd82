#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <random>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/embedded.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/llm.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> llm_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

using nlohmann::json;
using test::has;
using test::rel;

std::string complaint_of(auto&& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

Llm read(const json& config) { return read_hf_config(Field::wrap(config, "config.json"), "m"); }
std::string refusal(const json& config) {
  return complaint_of([&] { (void)read(config); });
}

json catalogue_config(std::string_view name) {
  for (const embedded::EmbeddedFile& file : embedded::llm_files()) {
    const json entry = json::parse(file.text);
    if (file.name == name) return entry.at("config");
    for (const json& checkpoint : entry.value("checkpoints", json::array())) {
      if (checkpoint.at("name") == name) return entry.at("config");
    }
  }
  FAIL("no catalogue file called ", std::string{name});
  return {};
}

/// Number of sliding-window layers.
std::int64_t n_sliding(const Llm& llm) {
  return std::count_if(llm.layers.begin(), llm.layers.end(),
                       [](const LayerSpec& layer) { return is_bounded(layer.attention); });
}

const AttentionSpec& first(std::string_view name) {
  return find_llm(name).layers.front().attention;
}

// ---- laws --------------------------------------------------------------------------------------

TEST_CASE("every catalogue model is a valid transformer") {
  CHECK(builtin_llms().size() >= 70);
  for (const Llm& llm : builtin_llms()) {
    INFO(llm.name);
    CHECK(llm.n_layers() > 0);
    CHECK(llm.max_positions > 0);
    CHECK_FALSE(llm.source.empty());
    CHECK_FALSE(llm.model_type.empty());
    CHECK(llm.extra_parameters > 0);
    for (const LayerSpec& layer : llm.layers) {
      if (layer.attention.n_heads > 0) {
        CHECK(layer.attention.n_heads % layer.attention.n_kv_heads == 0);
        CHECK(layer.attention.head_dim > 0);
        CHECK(layer.attention.v_head_dim > 0);
      }
      CHECK((layer.mlp.d_ff > 0 || !mixer_kinds(layer).empty() || llm.model_type == "deci"));
      CHECK((layer.mlp.n_experts == 0) == (layer.mlp.top_k == 0));
    }
    const std::int64_t total = parameters(llm);
    CHECK(total > 100'000'000);
    CHECK(active_parameters(llm) < total);
    CHECK(weight_bytes(llm, Dtype::kFp16).count() == 2 * total);
    CHECK(weight_bytes(llm, Dtype::kInt4).count() == (total + 1) / 2);
    CHECK(published_weight_bytes(llm) >= weight_bytes(llm, llm.published_dtype));
    // Norms, biases, sinks and router biases are a small part of every model.
    CHECK(static_cast<double>(llm.extra_parameters) < 2e-3 * static_cast<double>(total));
  }
}

TEST_CASE("a full cache grows per token by at most the elements of one token") {
  for (const Llm& llm : builtin_llms()) {
    INFO(llm.name);
    // Other layers have states, windows next to other entries, or index keys.
    const bool only_rows = std::all_of(llm.layers.begin(), llm.layers.end(), [](const auto& layer) {
      return items_without_rows(layer, Dtype::kFp16).empty();
    });
    if (!only_rows) continue;
    std::int64_t per_token = 0;
    for (const LayerSpec& layer : llm.layers) per_token += kv_elements_per_token(layer.attention);
    CHECK(full_cache_bytes(llm, 0, Dtype::kFp16) == Bytes{});
    CHECK(full_cache_bytes(llm, 1, Dtype::kFp16).count() == 2 * per_token);
    Bytes before{};
    for (const std::int64_t tokens : {1, 2, 127, 128, 129, 4096, 4097, 131072, 1 << 20}) {
      const Bytes now = full_cache_bytes(llm, tokens, Dtype::kFp16);
      CHECK(now > before);
      CHECK(now.count() <= 2 * per_token * tokens);
      CHECK(full_cache_bytes(llm, tokens, Dtype::kFp32).count() == 2 * now.count());
      CHECK(full_cache_bytes(llm, tokens, Dtype::kInt8).count() * 2 == now.count());
      if (n_sliding(llm) == 0) CHECK(now.count() == 2 * per_token * tokens);
      if (n_sliding(llm) == llm.n_layers()) break;  // all windows: the cache stops growing
      before = now;
    }
  }
}

TEST_CASE("every model is found by name, alias and file name, in any case") {
  for (const Llm& llm : builtin_llms()) {
    INFO(llm.name);
    CHECK(&find_llm(llm.name) == &llm);
    CHECK(std::none_of(llm.name.begin(), llm.name.end(),
                       [](unsigned char c) { return std::isupper(c) != 0; }));
    CHECK_FALSE(catalogue_config(llm.name).empty());
    for (std::string alias : llm_aliases(llm.name)) {
      INFO(alias);
      CHECK(&find_llm(alias) == &llm);
      for (char& c : alias) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      CHECK(&find_llm(alias) == &llm);
      std::replace(alias.begin(), alias.end(), '-', ' ');
      CHECK(&find_llm(alias) == &llm);
    }
  }
  // Names as printed in papers.
  CHECK(find_llm("GPT-3 175B").name == "gpt-3-175b");
  CHECK(find_llm("Llama 2 7B").name == "llama-2-7b");
}

// ---- exact parameter counts --------------------------------------------------------------------

TEST_CASE("published parameter counts") {
  // Each value is the total of the published safetensors (or of the class built from the published
  // config). Two of them by hand, with V vocabulary, D width, F feed-forward width, L layers:
  //   Llama-2-7B   2VD = 2*32000*4096 = 262,144,000; a layer 4D^2 + 3DF + 2D
  //                = 67,108,864 + 135,266,304 + 8,192 = 202,383,360; 32 of them
  //                6,476,267,520; the last norm 4,096: 6,738,415,616.
  //   Qwen2.5-7B   2VD = 2*152064*3584 = 1,089,994,752; a layer: Q, O 2D^2 = 25,690,112;
  //                K, V 2*D*512 = 3,670,016; biases 3584 + 2*512 = 4,608;
  //                3DF = 3*3584*18944 = 203,685,888; norms 7,168; sum 233,057,792; 28 of them
  //                6,525,618,176; 3,584: 7,615,616,512.
  const std::map<std::string, std::int64_t> published{
      {"llama-1-7b", 6'738'415'616},
      {"llama-1-13b", 13'015'864'320},
      {"llama-1-30b", 32'528'943'616},
      {"llama-1-65b", 65'285'660'672},
      {"llama-2-7b", 6'738'415'616},
      {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      // 2*128256*16384 + 126*(2*16384^2 + 2*16384*1024 + 3*16384*53248 + 2*16384) + 16384
      {"llama-3.1-405b", 405'853'388'800},
      {"llama-3.1-405b-fp8", 405'853'388'800},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"codellama-34b", 33'743'970'304},
      {"deepseek-coder-6.7b", 6'740'512'768},
      {"yi-6b", 6'061'035'520},
      {"yi-34b", 34'388'917'248},
      {"yi-9b-200k", 8'829'407'232},
      {"glm-4-9b", 9'399'951'360},
      {"glm-4-9b-1m", 9'483'857'920},
      {"mistral-small-3.2-24b", 23'572'403'200},
      {"mistral-7b-v0.1", 7'241'732'096},
      // 768 more rows in two tables of width 4096: 6,291,456 more parameters
      {"mistral-7b-v0.3", 7'248'023'552},
      {"mistral-nemo-12b", 12'247'782'400},
      {"mistral-large-2407", 122'610'069'504},
      {"mixtral-8x7b", 46'702'792'704},
      {"mixtral-8x22b", 140'630'071'296},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen2.5-72b", 72'706'203'648},
      {"qwen2-72b", 72'706'203'648},
      {"qwen1.5-72b", 72'287'920'128},
      {"qwen-72b", 72'287'920'128},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"phi-2", 2'779'683'840},
      {"phi-3-mini-4k", 3'821'079'552},
      {"phi-3-medium-4k", 13'960'238'080},
      {"internlm-20b", 20'088'714'240},
      {"internlm2-20b", 19'861'149'696},
      {"phi-3-small-8k", 7'392'272'384},
      {"phi-4", 14'659'507'200},
      {"starcoder2-3b", 3'030'371'328},
      {"starcoder2-7b", 7'173'923'840},
      {"starcoder2-15b", 15'957'889'024},
      // 65024*4544 tied; a layer: QKV 4544*(71+2)*64, O 4544^2, MLP 8*4544^2, one LayerNorm 2*4544
      {"falcon-7b", 6'921'720'704},
      {"falcon-40b", 41'303'293'952},
      {"chatglm-6b", 6'173'286'400},
      {"chatglm2-6b", 6'243'584'000},
      {"gpt2", 124'439'808},
      {"gpt-j-6b", 6'050'882'784},
      {"gpt-neox-20b", 20'554'567'680},
      {"bloom-176b", 176'247'271'424},
      {"opt-1.3b", 1'315'758'080},
      // 50272*4096 tied + 2050*4096 positions + 32*(12*4096^2 + 9*4096 + 4*4096) + 2*4096
      {"opt-6.7b", 6'658'473'984},
      {"opt-13b", 12'853'473'280},
      {"opt-30b", 29'974'540'288},
      {"gemma-2b", 2'506'172'416},
      {"gemma-7b", 8'537'680'896},
      {"gemma-2-2b", 2'614'341'888},
      {"gemma-2-9b", 9'241'705'984},
      {"gemma-2-27b", 27'227'128'320},
      {"gemma-3-1b", 999'885'952},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
      {"deepseek-v2", 235'741'434'880},
      {"deepseek-v2-lite", 15'706'484'224},
      // the routers of 58 layers have 256 biases: 671,026,404,352 + 14,848
      {"deepseek-v3", 671'026'419'200},
      {"kimi-k2", 1'026'408'232'448},
      {"glm-5", 743'911'218'432},
      {"minimax-m2.5", 228'689'764'864},
      {"minimax-m3", 426'174'572'928},
      {"qwen3.5-27b", 26'895'998'464},
      {"gemma-4-26b-a4b", 25'233'141'790},
      {"llama-4-scout", 107'769'861'120},
      {"jamba-1.5-mini", 51'570'323'328},
      {"nemotron-3-nano-30b-a3b", 31'577'940'288},
      {"nemotron-super-49b", 49'867'145'216},
  };
  for (const auto& [name, total] : published) {
    INFO(name);
    CHECK(parameters(find_llm(name)) == total);
  }
}

TEST_CASE("published totals that include parts this program leaves out") {
  // Gemma 3's vision tower has 416,866,032 parameters; its projector has 1152*D and a norm of 1152.
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> gemma{
      {"gemma-3-4b", {4'300'079'472, 2560}},
      {"gemma-3-12b", {12'187'325'040, 3840}},
      {"gemma-3-27b", {27'432'406'640, 5376}}};
  for (const auto& [name, sizes] : gemma) {
    INFO(name);
    CHECK(parameters(find_llm(name)) + 416'866'032 + 1152 * sizes.second + 1152 == sizes.first);
  }
  // GLM-4.5 is published with one additional layer, which predicts a second token: a layer with
  // experts (161*3*5120*1536 + attention 136,314,880 + router 819,200), eh_proj 2*5120^2, a
  // separate embedding and head 2*151552*5120, norms 5*5120, biases 14,336, QK norms 256, router
  // bias 160.
  const std::int64_t next_layer = 161LL * 3 * 5120 * 1536 + 136'314'880 + 819'200 +
                                  2LL * 5120 * 5120 + 2LL * 151552 * 5120 + 5 * 5120 + 14'336 +
                                  256 + 160;
  CHECK(parameters(find_llm("glm-4.5")) + next_layer == 358'337'791'296);
  // GPT-3: 50257*D + 2048*D + 96*(12*D^2 + 13*D) + 2*D with D = 12288; the paper prints 175.0B.
  CHECK(parameters(find_llm("gpt-3-175b")) == 174'604'259'328);
}

TEST_CASE("active parameters") {
  // Published: Mixtral 12.9B, Qwen3-235B-A22B 22B, Qwen3-30B-A3B 3.3B, DeepSeek-V3 37B,
  // gpt-oss 3.6B and 5.1B, GLM-4.5 32B. The first three count the embedding as well.
  CHECK(static_cast<double>(active_parameters(find_llm("mixtral-8x7b"))) == rel(12.75e9, 1e-3));
  CHECK(static_cast<double>(active_parameters(find_llm("qwen3-235b-a22b"))) == rel(21.57e9, 1e-3));
  CHECK(static_cast<double>(active_parameters(find_llm("deepseek-v3"))) == rel(36.6e9, 2e-3));
  CHECK(static_cast<double>(active_parameters(find_llm("gpt-oss-20b"))) == rel(3.61e9, 2e-3));
  CHECK(static_cast<double>(active_parameters(find_llm("gpt-oss-120b"))) == rel(5.13e9, 2e-3));
  CHECK(static_cast<double>(active_parameters(find_llm("glm-4.5"))) == rel(32.85e9, 2e-3));
  // Dense, untied: all except the embedding, the norms and the biases.
  const Llm& llama = find_llm("llama-2-7b");
  CHECK(active_parameters(llama) == 6'738'415'616 - 32000 * 4096 - 65 * 4096);
  // Tied: the head is nevertheless a product.
  const Llm& gemma = find_llm("gemma-2b");
  CHECK(active_parameters(gemma) == 2'506'172'416 - 37 * 2048);
}

TEST_CASE("published weight bytes") {
  CHECK(published_weight_bytes(find_llm("llama-2-7b")).count() == 2 * 6'738'415'616);
  // 669,065,609,216 values in fp8 with 40,838,232 scales for blocks of 128 x 128 in fp32; routers,
  // norms, embedding and head (1,960,809,984) in bf16, the routers' biases among them in fp32.
  CHECK(published_weight_bytes(find_llm("deepseek-v3")).count() ==
        669'065'609'216 + std::int64_t{4} * 40'838'232 + std::int64_t{2} * 1'960'809'984 +
            std::int64_t{2} * 14'848);
  // 3 x 16,384 x 53,248 values of 124 layers in fp8, with an fp32 scale for each of 2 x 53,248 +
  // 16,384 rows; attention, the first and the last layer, embedding and head in bf16.
  CHECK(published_weight_bytes(find_llm("llama-3.1-405b-fp8")).count() ==
        324'538'466'304 + std::int64_t{124} * 122'880 * 4 +
            std::int64_t{2} * (405'853'388'800 - 324'538'466'304));
  // gpt-oss-20b: experts 24*32*3*2880^2 = 19,110,297,600 values at 4.25 bits = 10,152,345,600 B,
  // the other 1,804,459,584 values in bf16 = 3,608,919,168 B.
  const Llm& oss = find_llm("gpt-oss-20b");
  CHECK(published_weight_bytes(oss).count() == 13'761'264'768);
  CHECK(loaded_weight_bytes(oss, Dtype::kFp4).count() == 13'761'264'768);
  CHECK(loaded_weight_bytes(oss, Dtype::kBf16) == weight_bytes(oss, Dtype::kBf16));
}

// ---- caches ------------------------------------------------------------------------------------

TEST_CASE("full caches quoted by papers") {
  // KVzap: Llama-1-65B, 128k tokens, bf16: 335 GB. 80 layers * 64 heads * 128 * 2 (K, V) * 2 B
  // = 2,621,440 B per token; 128,000 tokens take 335.5e9 B. (131,072 would take 343.6e9 = 320 GiB,
  // so the article's k is a thousand and its GB is 1e9.)
  CHECK(full_cache_bytes(find_llm("llama-1-65b"), 1, Dtype::kBf16).count() == 2'621'440);
  CHECK(full_cache_bytes(find_llm("llama-1-65b"), 128'000, Dtype::kBf16).count() ==
        335'544'320'000);
  CHECK(full_cache_bytes(find_llm("llama-1-65b"), 131'072, Dtype::kBf16) == 320_GiB);
  // ZeroMerge: Llama-2-7B in fp32: 32 * 32 * 128 * 2 * 4 B = 1 MiB per token.
  CHECK(full_cache_bytes(find_llm("llama-2-7b"), 1, Dtype::kFp32) == 1_MiB);
  // MiniCache: GPT-3 175B, batch 64, 4096 tokens, fp16: 96*96*128*2*2 B * 262,144
  // = 4,718,592 * 262,144 = 1,236.95e9 B (the paper prints 1208: bytes over 1024 * 10^6).
  CHECK(64 * full_cache_bytes(find_llm("gpt-3-175b"), 4096, Dtype::kFp16).count() ==
        1'236'950'581'248);
  // KeepKV: Llama-3-70B, batch 128, 8K tokens, 16 bit: 80*8*128*2*2 B = 327,680 B per token;
  // times 8192 * 128 = 320 GiB.
  CHECK(full_cache_bytes(find_llm("llama-3-70b"), 8192, Dtype::kFp16) * 128 == 320_GiB);
}

TEST_CASE("cached elements by kind of attention") {
  CHECK(kv_elements_per_token(first("llama-2-7b")) == 2 * 32 * 128);  // MHA
  CHECK(kv_elements_per_token(first("llama-3-8b")) == 2 * 8 * 128);   // GQA
  CHECK(kv_elements_per_token(first("falcon-7b")) == 2 * 1 * 64);     // MQA
  CHECK(kv_elements_per_token(first("gemma-2b")) == 2 * 1 * 256);
  CHECK(kv_elements_per_token(first("chatglm2-6b")) == 2 * 2 * 128);
  CHECK(kv_elements_per_token(first("chatglm-6b")) == 2 * 32 * 128);
  // MLA: one latent of 512 and one RoPE key of 64, shared by all 128 heads.
  CHECK(kv_elements_per_token(first("deepseek-v3")) == 576);
  CHECK(kv_elements_per_token(first("deepseek-v2")) == 576);
  CHECK(full_cache_bytes(find_llm("deepseek-v3"), 1, Dtype::kBf16).count() == 61 * 576 * 2);
  CHECK(first("deepseek-v3").head_dim == 192);
  CHECK(first("deepseek-v3").v_head_dim == 128);
}

TEST_CASE("head width is read and not derived") {
  CHECK(first("qwen3-32b").head_dim == 128);         // 5120 / 64 would be 80
  CHECK(first("gemma-7b").head_dim == 256);          // 3072 / 16 would be 192
  CHECK(first("mistral-nemo-12b").head_dim == 128);  // 5120 / 32 would be 160
  CHECK(first("gemma-3-12b").head_dim == 256);       // 3840 / 16 would be 240
  CHECK(first("gpt-oss-20b").head_dim == 64);        // 2880 / 64 would be 45
  CHECK(first("llama-2-7b").head_dim == 128);        // not given: 4096 / 32
}

TEST_CASE("sliding layers hold min(tokens, window)") {
  const Llm& v1 = find_llm("mistral-7b-v0.1");
  CHECK(n_sliding(v1) == 32);
  CHECK(full_cache_bytes(v1, 4096, Dtype::kFp16) == full_cache_bytes(v1, 100'000, Dtype::kFp16));
  CHECK(full_cache_bytes(v1, 4095, Dtype::kFp16) < full_cache_bytes(v1, 4096, Dtype::kFp16));
  CHECK(n_sliding(find_llm("mistral-7b-v0.2")) == 0);
  CHECK(n_sliding(find_llm("mistral-7b-v0.3")) == 0);
  CHECK(n_sliding(find_llm("qwen2.5-7b")) == 0);  // has a window, but use_sliding_window is false
  CHECK(n_sliding(find_llm("phi-3-mini-4k")) == 32);
  CHECK(n_sliding(find_llm("phi-4")) == 0);

  const Llm& gemma2 = find_llm("gemma-2-9b");
  CHECK(n_sliding(gemma2) == 21);
  CHECK(gemma2.layers[0].attention.window == 4096);
  CHECK(gemma2.layers[1].attention.window == 0);
  // Layers 6, 12, …, 48 of 48 are full.
  const Llm& gemma3 = find_llm("gemma-3-12b");
  CHECK(n_sliding(gemma3) == 40);
  CHECK(gemma3.layers[4].attention.window == 1024);
  CHECK(gemma3.layers[5].attention.window == 0);
  // 8 full and 40 sliding layers of 2*8*256 elements at 131,072 tokens, 2 B each.
  CHECK(full_cache_bytes(gemma3, 131'072, Dtype::kBf16).count() ==
        (8LL * 131'072 + 40 * 1024) * 4096 * 2);
  CHECK(n_sliding(find_llm("gemma-3-27b")) == 52);  // 62 layers, 10 full

  const Llm& oss = find_llm("gpt-oss-20b");
  CHECK(n_sliding(oss) == 12);
  CHECK(oss.layers[0].attention.window == 128);
  CHECK(full_cache_bytes(oss, 1000, Dtype::kBf16).count() == (12LL * 1000 + 12 * 128) * 1024 * 2);
}

// ---- configurations ----------------------------------------------------------------------------

TEST_CASE("the window rules of each family") {
  json mistral = catalogue_config("mistral-7b-v0.1");
  mistral.erase("sliding_window");  // MistralConfig's default is 4096 …
  CHECK(read(mistral).layers[0].attention.window == 4096);
  mistral["sliding_window"] = nullptr;  // … and null means none
  CHECK(read(mistral).layers[0].attention.window == 0);

  json qwen = catalogue_config("qwen2.5-7b");
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 20;
  qwen["sliding_window"] = 4096;
  CHECK(n_sliding(read(qwen)) == 8);  // layers 20 to 27
  CHECK(read(qwen).layers[19].attention.window == 0);

  qwen.erase("sliding_window");
  CHECK(refusal(qwen) == "config.json: /sliding_window: missing");

  // A list with an entry per layer overrides the pattern.
  json gemma = catalogue_config("gemma-2-9b");
  gemma["layer_types"] = std::vector<std::string>(42, "full_attention");
  CHECK(n_sliding(read(gemma)) == 0);
  gemma["layer_types"][7] = "sliding_attention";
  CHECK(n_sliding(read(gemma)) == 1);
  CHECK(read(gemma).layers[7].attention.window == 4096);
  gemma["layer_types"].push_back("full_attention");
  CHECK(refusal(gemma) == "config.json: /layer_types: 43 entries for 42 layers");
  gemma["layer_types"] = std::vector<std::string>(42, "linear_attention");
  CHECK(refusal(gemma) ==
        "config.json: /layer_types/0: layers of type \"linear_attention\" are not modelled "
        "(full_attention, sliding_attention)");

  json llama = catalogue_config("llama-2-7b");
  llama["sliding_window"] = 1024;
  CHECK(has(refusal(llama), "/sliding_window: the published code of this family has no"));
  llama["sliding_window"] = nullptr;
  CHECK(n_sliding(read(llama)) == 0);
  llama["layer_types"] = std::vector<std::string>(32, "sliding_attention");
  CHECK(has(refusal(llama), "/layer_types/0: a sliding layer, but sliding_window is not given"));
}

TEST_CASE("the number of cached heads follows the family's rule") {
  json llama = catalogue_config("llama-2-70b");
  CHECK(read(llama).layers[0].attention.n_kv_heads == 8);
  llama.erase("num_key_value_heads");
  CHECK(read(llama).layers[0].attention.n_kv_heads == 64);
  llama["num_key_value_heads"] = 7;
  CHECK(refusal(llama) ==
        "config.json: /num_key_value_heads: 7 cached heads do not divide 64 query heads");

  // Gemma 3's class caches 4 heads if the file has no value.
  json gemma = catalogue_config("gemma-3-12b");
  gemma["text_config"].erase("num_key_value_heads");
  CHECK(read(gemma).layers[0].attention.n_kv_heads == 4);
  gemma["text_config"]["num_attention_heads"] = 6;
  CHECK(has(refusal(gemma), "/text_config: num_key_value_heads is missing, and its default of 4"));

  json falcon = catalogue_config("falcon-7b");
  CHECK(falcon.at("num_kv_heads") == 71);  // the file's value; the code uses 1
  CHECK(read(falcon).layers[0].attention.n_kv_heads == 1);
  falcon["multi_query"] = false;
  CHECK(read(falcon).layers[0].attention.n_kv_heads == 71);
  CHECK(read(catalogue_config("falcon-40b")).layers[0].attention.n_kv_heads == 8);
}

TEST_CASE("layers with and without experts") {
  const Llm& v3 = find_llm("deepseek-v3");
  CHECK(v3.layers[2].mlp.n_experts == 0);
  CHECK(v3.layers[2].mlp.d_ff == 18432);
  CHECK(v3.layers[3].mlp.n_experts == 256);
  CHECK(v3.layers[3].mlp.top_k == 8);
  CHECK(v3.layers[3].mlp.shared_d_ff == 2048);
  CHECK(find_llm("deepseek-v2").layers[1].mlp.shared_d_ff == 2 * 1536);

  json qwen = catalogue_config("qwen3-30b-a3b");
  qwen["mlp_only_layers"] = {0, 5};
  qwen["decoder_sparse_step"] = 2;
  const Llm read_back = read(qwen);
  CHECK(read_back.layers[0].mlp.n_experts == 0);
  CHECK(read_back.layers[1].mlp.n_experts == 128);
  CHECK(read_back.layers[2].mlp.n_experts == 0);
  CHECK(read_back.layers[5].mlp.n_experts == 0);
  CHECK(read_back.layers[5].mlp.d_ff == 6144);
  qwen["num_experts_per_tok"] = 129;
  CHECK(refusal(qwen) == "config.json: /num_experts_per_tok: a token visits 129 of 128 experts");

  // Qwen1.5-MoE-A2.7B, published with 14,315,784,192 parameters: 2VD = 622,329,856; a layer: 4D^2
  // + 3D of biases, router 60*D, 60 experts 3*D*1408, a shared one 3*D*5632 with a gate of D, 2D.
  CHECK(parameters(read({{"model_type", "qwen2_moe"},
                         {"hidden_size", 2048},
                         {"intermediate_size", 5632},
                         {"num_hidden_layers", 24},
                         {"num_attention_heads", 16},
                         {"num_key_value_heads", 16},
                         {"vocab_size", 151936},
                         {"max_position_embeddings", 8192},
                         {"num_experts", 60},
                         {"num_experts_per_tok", 4},
                         {"moe_intermediate_size", 1408},
                         {"shared_expert_intermediate_size", 5632}})) == 14'315'784'192);
}

TEST_CASE("families that are not in the catalogue") {
  // GLM-4-9B-0414 (glm4): 2VD = 1,241,513,984; a layer: Q 4096^2, K, V 2*4096*256, O 4096^2,
  // biases 4608, 3*4096*13696, four norms; 40 of them and the last norm: 9,400,279,040.
  const json glm4{{"model_type", "glm4"},
                  {"hidden_size", 4096},
                  {"intermediate_size", 13696},
                  {"num_hidden_layers", 40},
                  {"num_attention_heads", 32},
                  {"num_key_value_heads", 2},
                  {"head_dim", 128},
                  {"attention_bias", true},
                  {"vocab_size", 151552},
                  {"max_position_embeddings", 32768}};
  CHECK(parameters(read(glm4)) == 9'400'279'040);
  json glm = glm4;
  glm["model_type"] = "glm";  // two norms fewer per layer
  CHECK(parameters(read(glm)) == 9'400'279'040 - 40 * 2 * 4096);
  // The architecture's name is used if model_type is absent.
  json nameless = catalogue_config("qwen3-8b");
  nameless.erase("model_type");
  CHECK(parameters(read(nameless)) == 8'190'735'360);
  CHECK(read(nameless).model_type == "qwen3");
}

TEST_CASE("dtypes") {
  json config = catalogue_config("llama-2-7b");
  CHECK(read(config).published_dtype == Dtype::kFp16);
  config["torch_dtype"] = "torch.float32";
  CHECK(read(config).published_dtype == Dtype::kFp32);
  config.erase("torch_dtype");
  CHECK(read(config).published_dtype == Dtype::kBf16);
  config["dtype"] = "float16";
  CHECK(read(config).published_dtype == Dtype::kFp16);
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  CHECK(read(config).published_dtype == Dtype::kInt4);
  CHECK(read(config).compute_dtype == Dtype::kFp16);
  CHECK(default_kv_dtype(read(config), Dtype::kInt4) == Dtype::kFp16);
  config["quantization_config"]["bits"] = 3;
  CHECK(refusal(config) == "config.json: /quantization_config/bits: expected 2, 4 or 8, got 3");
  config["quantization_config"] = {{"quant_method", "magic"}};
  CHECK(has(refusal(config), "/quantization_config/quant_method: expected one of auto-round, awq"));
  CHECK(find_llm("deepseek-v3").published_dtype == Dtype::kFp8E4m3);
  CHECK(find_llm("gpt-oss-20b").published_dtype == Dtype::kFp4);
  CHECK(find_llm("gpt-oss-20b").outside_experts_dtype == Dtype::kBf16);
}

TEST_CASE("a cache without a chosen format is never quantised") {
  for (const Llm& llm : builtin_llms()) {
    CHECK(bits_of(default_kv_dtype(llm, llm.published_dtype)) >= 16);
    for (const auto& [dtype, name, bits] : kDtypes) {
      if (bits >= 16) CHECK(default_kv_dtype(llm, dtype) == dtype);
      if (bits < 16) CHECK(bits_of(default_kv_dtype(llm, dtype)) == 16);
    }
  }
  CHECK(default_kv_dtype(find_llm("gpt-oss-20b"), Dtype::kFp4) == Dtype::kBf16);
  CHECK(default_kv_dtype(find_llm("deepseek-v3"), Dtype::kFp8E4m3) == Dtype::kBf16);
  CHECK(default_kv_dtype(find_llm("llama-2-7b"), Dtype::kInt4) == Dtype::kFp16);
  // Published in fp32 and quantised by the user: the compute dtype is 16-bit.
  CHECK(default_kv_dtype(find_llm("gpt-j-6b"), Dtype::kInt4) == Dtype::kBf16);
}

TEST_CASE("keys that do not affect memory are ignored") {
  json config = catalogue_config("llama-3.1-8b");
  const std::int64_t total = parameters(find_llm("llama-3.1-8b"));
  config["rope_scaling"] = {{"factor", 8.0}, {"rope_type", "llama3"}};
  config["initializer_range"] = 0.02;
  config["attention_dropout"] = 0.0;
  config["is_encoder_decoder"] = false;
  config["auto_map"] = {{"AutoConfig", "configuration.X"}};
  config["something_new"] = {1, 2, 3};
  CHECK(parameters(read(config)) == total);
}

TEST_CASE("RoPE scaling extends the positions as engines count them") {
  const auto positions = [](const json& scaling) {
    json config = catalogue_config("llama-3-8b");  // 8,192 positions
    config["rope_scaling"] = scaling;
    return read(config).max_positions;
  };
  CHECK(positions(nullptr) == 8192);
  CHECK(positions({{"factor", 4.0}, {"type", "linear"}}) == 32768);
  CHECK(positions({{"factor", 2.5}, {"rope_type", "dynamic"}}) == 20480);
  CHECK(positions(
            {{"factor", 4.0}, {"rope_type", "yarn"}, {"original_max_position_embeddings", 4096}}) ==
        16384);
  CHECK(positions({{"factor", 4.0}, {"rope_type", "yarn"}}) == 32768);
  // With these types the declared positions include the factor.
  CHECK(positions({{"factor", 8.0}, {"rope_type", "llama3"}}) == 8192);
  CHECK(positions({{"factor", 8.0}, {"rope_type", "longrope"}}) == 8192);
  CHECK(positions({{"rope_type", "default"}}) == 8192);
  json config = catalogue_config("llama-3-8b");
  config["rope_scaling"] = {{"factor", 0.0}, {"type", "linear"}};
  CHECK(has(refusal(config), "/rope_scaling/factor"));
}

// ---- bad input ---------------------------------------------------------------------------------

TEST_CASE("an unknown architecture reports what is missing") {
  const std::string unknown =
      refusal({{"model_type", "mamba3"}, {"hidden_size", 4096}, {"vocab_size", 32000}});
  CHECK(unknown.starts_with("config.json: /model_type: unknown model_type \"mamba3\""));
  CHECK(has(unknown,
            "the file has hidden_size, vocab_size and does not have num_hidden_layers, "
            "num_attention_heads, num_key_value_heads, head_dim"));
  CHECK(has(unknown, "did you mean \"bamba\"? The cache layout of its layers is unknown"));
  CHECK(has(unknown, "add \"kvsim_family\""));
  CHECK(has(refusal({{"model_type", "lama"}}), "did you mean \"llama\"?"));
  CHECK(refusal(json::object()) == "config.json: neither model_type nor architectures is given");
  CHECK(has(refusal({{"architectures", {"QwenTwoForCausalLM"}}}),
            "/architectures/0: unknown architecture \"QwenTwoForCausalLM\""));
  CHECK(refusal(json::array()) == "config.json: expected an object, got an array of 0");
}

TEST_CASE("a known family names the key that is missing or wrong") {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    json config = catalogue_config("llama-3-8b");
    config.erase(key);
    CHECK(refusal(config) == fmt::format("config.json: /{}: missing", key));
    for (const json& bad : {json(0), json(-1), json(1e9), json(1.5), json("4096"), json(true),
                            json(nullptr), json::array({1})}) {
      // A declared context of 1e9 tokens needs no memory, so it is accepted.
      if (bad == 1e9 && std::string_view{key} == "max_position_embeddings") continue;
      config[key] = bad;
      INFO(key, " = ", bad.dump());
      CHECK(refusal(config).starts_with(fmt::format("config.json: /{}: expected an integer", key)));
    }
  }
  json config = catalogue_config("llama-3-8b");
  config["num_attention_heads"] = 33;
  CHECK(refusal(config) ==
        "config.json: /num_attention_heads: 33 heads do not divide the width 4096, and head_dim "
        "is not given");
  config = catalogue_config("deepseek-v3");
  config.erase("kv_lora_rank");
  CHECK(refusal(config) == "config.json: /kv_lora_rank: missing");
  config = catalogue_config("opt-6.7b");
  config["word_embed_proj_dim"] = 512;
  CHECK(has(refusal(config), "/word_embed_proj_dim: embeddings of another width"));
  config = catalogue_config("deepseek-v3");
  config["hidden_size"] = 131072;
  config["moe_intermediate_size"] = 1 << 20;
  CHECK(has(refusal(config), "expected at most 1e15"));
}

TEST_CASE("a key that changes the cache and is not modelled is refused") {
  const std::map<std::string, json> keys{
      {"attention_chunk_size", 8192}, {"cross_attention_layers", {3, 8}},
      {"num_kv_shared_layers", 10},   {"full_attention_interval", 4},
      {"linear_num_value_heads", 32}, {"layers_block_type", {"mamba", "attention"}},
      {"mamba_d_state", 16},          {"index_topk", 2048},
      {"is_encoder_decoder", true}};
  for (const auto& [key, value] : keys) {
    json config = catalogue_config("llama-3-8b");
    config[key] = value;
    INFO(key);
    CHECK(refusal(config).starts_with(fmt::format("config.json: /{}: ", key)));
    CHECK(has(refusal(config), "is not modelled"));
    config[key] = nullptr;
    CHECK(refusal(config) == "no complaint");
  }
  // Llama-3.2-11B-Vision: the error of the text part has the path of that part.
  const json vision{
      {"model_type", "mllama"},
      {"text_config", {{"model_type", "mllama_text_model"}, {"cross_attention_layers", {3, 8}}}}};
  CHECK(has(refusal(vision), "/text_config/cross_attention_layers: cross-attention"));
}

TEST_CASE("names: ambiguous and unknown") {
  const auto complaint = [](std::string_view name) {
    return complaint_of([&] { (void)find_llm(name); });
  };
  CHECK(complaint("Mistral-7B") ==
        "model \"Mistral-7B\" is ambiguous; one of mistral-7b-v0.1, mistral-7b-v0.2, "
        "mistral-7b-v0.3");
  CHECK(complaint("llama-2").starts_with("model \"llama-2\" is ambiguous; one of llama-2-13b"));
  CHECK(complaint("llama-2-7c") == "unknown model \"llama-2-7c\"; did you mean \"llama-2-7b\"?");
  // The part of a Hugging Face name after the slash also matches.
  CHECK(complaint("unsloth/Llama-3.1-8B").ends_with("; did you mean \"llama-3.1-8b\"?"));
  CHECK(complaint("no such thing at all") ==
        "unknown model \"no such thing at all\" (known: bloom-176b, chatglm-6b, chatglm2-6b, "
        "codellama-34b, deepseek-coder-6.7b, deepseek-v2, deepseek-v2-lite, deepseek-v3, and " +
            std::to_string(builtin_llms().size() - 8) + " more); `kvsim list models` lists all");
  for (const char* name : {"", "-", "llama", "gpt-5", "Llama-3.2-11B-Vision"}) {
    INFO(name);
    CHECK(complaint(name) != "no complaint");
  }
  CHECK_THROWS_AS((void)llm_aliases("nobody"), InputError);
}

TEST_CASE("the spellings of models in published measurements resolve") {
  const std::map<std::string, std::string> spellings{
      {"Llama-2-7B", "llama-2-7b"},
      {"LLAMA_2_7B", "llama-2-7b"},
      {"llama 3.1 8b", "llama-3.1-8b"},
      {"META-LLAMA/llama-3.1-8b", "llama-3.1-8b"},
      {"Qwen3_32B", "qwen3-32b"},
      {"Llama-2-7b-hf", "llama-2-7b"},
      {"meta-llama/Llama-2-70b-hf", "llama-2-70b"},
      {"Llama-70B", "llama-2-70b"},
      {"Llama-7B", "llama-1-7b"},
      {"Llama-30B", "llama-1-30b"},
      {"Llama-1-65B", "llama-1-65b"},
      {"GPT-3-175B", "gpt-3-175b"},
      {"GLM 4.5", "glm-4.5"},
      {"Qwen3-235B-A22B-FP8", "qwen3-235b-a22b-fp8"},
      {"Qwen3-30B-A3B-Base", "qwen3-30b-a3b"},
      {"Phi-4-14B", "phi-4"},
      {"Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"Llama-3.1-8B (Nemotron Safety Guard)", "llama-3.1-8b"},
      {"Llama-3.1-70B w8a8", "llama-3.1-70b-w8a8"},
      {"Llama-3.3-70B-FP8", "llama-3.3-70b-fp8"},
      {"Meta-Llama-3-8B", "llama-3-8b"},
      {"Llama-3-8B-1M", "llama-3-8b-1m"},
      {"LWM-Text-Chat-1M (7B)", "lwm-text-chat-1m"},
      {"DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"},
      {"DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"},
      {"Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"},
      {"Qwen-1.5-72B", "qwen1.5-72b"},
      {"Qwen-72B", "qwen-72b"},
      {"Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b"},
      {"GPT-J-6B", "gpt-j-6b"},
      {"Yi-6B-Chat", "yi-6b"},
      {"ChatGLM2-6B", "chatglm2-6b"},
      {"CodeLlama-34b-Instruct-hf", "codellama-34b"},
      {"DeepSeek-V3", "deepseek-v3"},
      {"phi-2", "phi-2"},
      {"bloom-176b", "bloom-176b"},
      {"OPT-175B", "opt-175b"},
      {"gpt-oss-120b", "gpt-oss-120b"},
  };
  for (const auto& [spelling, name] : spellings) {
    INFO(spelling);
    CHECK(find_llm(spelling).name == name);
  }
}

TEST_CASE("a name of a quantized checkpoint is a model with quantized weights") {
  const std::regex quantized{
      "(^|[^a-z0-9])(fp8|fp4|int8|int4|w[48]a(8|16)|awq|gptq|nvfp4|mxfp4|nf4)($|[^a-z0-9])",
      std::regex::icase};
  for (const Llm& llm : builtin_llms()) {
    std::vector<std::string> names = llm_aliases(llm.name);
    names.push_back(llm.name);
    for (const std::string& name : names) {
      INFO(llm.name, ", ", name);
      if (std::regex_search(name, quantized)) CHECK(bits_of(llm.published_dtype) < 16);
    }
  }
  // vLLM's logs: 67.72 GiB for both 70B checkpoints with 8-bit linear layers.
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  for (const char* name : {"llama-3.3-70b-fp8", "llama-3.1-70b-w8a8"}) {
    INFO(name);
    CHECK(static_cast<double>(
              loaded_weight_bytes(find_llm(name), {.base = find_llm(name).published_dtype})
                  .count()) == rel(67.72 * kGiB, 1e-3));
  }
  // The dtype takes precedence: the same bytes as the model that is not quantized.
  const Llm& fp8 = find_llm("Qwen/Qwen3-30B-A3B-FP8");
  const Llm& plain = find_llm("qwen3-30b-a3b");
  CHECK(published_formats(fp8) == "fp8-block");
  CHECK(loaded_weight_bytes(fp8, {.base = Dtype::kBf16}) == published_weight_bytes(plain));
  CHECK(loaded_weight_bytes(fp8, {.base = fp8.published_dtype}) ==
        loaded_weight_bytes(plain,
                            {.base = Dtype::kBf16, .format = &find_weight_format("fp8-block")}));
  // Checkpoints that are not in the catalogue are refused with a hint about valid arguments.
  const auto complaint = [](const char* name) {
    return complaint_of([&] { (void)find_llm(name); });
  };
  CHECK(complaint("Llama-3.1-8B-Instruct-AWQ") ==
        "unknown model \"Llama-3.1-8B-Instruct-AWQ\": a quantized llama-3.1-8b; give its "
        "config.json, or the base model with --dtype awq-int4");
  CHECK(complaint("Qwen/Qwen3-32B-FP8") ==
        "unknown model \"Qwen/Qwen3-32B-FP8\": a quantized qwen3-32b; give its config.json, or the "
        "base model with --dtype fp8-block or fp8-channel");
  CHECK(complaint("Qwen3-8B-AWQ").find("quantized qwen3-8b;") != std::string::npos);
  CHECK(complaint("nothing-like-it-AWQ").find("--dtype awq-int4") != std::string::npos);
}

TEST_CASE("a broken configuration gives a model or an InputError and nothing else") {
  // A fixed list of unusual values for every key of every catalogue configuration, then random
  // pairs of these values.
  const std::array<json, 14> strange{json(nullptr), json(true),
                                     json(false),   json(0),
                                     json(-1),      json(3),
                                     json(1e9),     json(1e300),
                                     json(0.5),     json(std::uint64_t{18446744073709551615U}),
                                     json(""),      json("x"),
                                     json::array(), json::object()};
  std::int64_t models = 0;
  std::int64_t refusals = 0;
  const auto attempt = [&](const json& config) {
    try {
      const Llm llm = read(config);
      // An accepted configuration is usable.
      (void)active_parameters(llm);
      (void)weight_bytes(llm, Dtype::kFp32);
      (void)published_weight_bytes(llm);
      (void)full_cache_bytes(llm, 1 << 20, Dtype::kFp32);
      CHECK(llm.n_layers() > 0);
      ++models;
    } catch (const InputError&) {
      ++refusals;
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what(), " of ", config.dump());
    }
  };
  std::mt19937_64 dice{20240607};
  const auto roll = [&dice](std::size_t sides) { return static_cast<std::size_t>(dice() % sides); };
  for (const embedded::EmbeddedFile& file : embedded::llm_files()) {
    const json whole = json::parse(file.text).at("config");
    std::vector<std::string> keys;
    for (const auto& [key, value] : whole.items()) keys.push_back(key);
    for (const std::string& key : keys) {
      json config = whole;
      config.erase(key);
      attempt(config);
      for (const json& value : strange) {
        config[key] = value;
        attempt(config);
      }
    }
    for (int round = 0; round < 50; ++round) {
      json config = whole;
      for (int damage = 0; damage < 2; ++damage) {
        const std::string& key = keys[roll(keys.size())];
        switch (roll(3)) {
          case 0:
            config.erase(key);
            break;
          case 1:
            config[key] = strange[roll(strange.size())];
            break;
          default:
            config[key] = static_cast<std::int64_t>(roll(1ULL << (1 + roll(30))));
        }
      }
      attempt(config);
    }
  }
  CHECK(models > 1000);
  CHECK(refusals > 1000);
}

}  // namespace
}  // namespace kvsim
