// Kinds of layers, each solved by hand: weights, cache of a sequence, bytes read by a step.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/embedded.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> llm_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::write;

Llm read(const json& config) { return read_hf_config(Field::wrap(config, "config.json"), "m"); }
std::string refusal(const json& config) {
  try {
    (void)read(config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

json catalogue_config(std::string_view name) {
  for (const embedded::EmbeddedFile& file : embedded::llm_files()) {
    if (file.name == name) return json::parse(file.text).at("config");
  }
  FAIL("no catalogue file called ", std::string{name});
  return {};
}

struct Bytes2 {
  double held, read;
};
Bytes2 at(const LayerSpec& layer, std::int64_t tokens, Dtype dtype = Dtype::kBf16) {
  Bytes2 out{};
  for (const CacheItem& item : cache_items(layer, dtype)) {
    out.held += item.held(tokens);
    out.read += item.read(tokens);
  }
  return out;
}
std::int64_t mixers(const LayerSpec& layer, std::int64_t d_model) {
  std::int64_t sum = 0;
  for (const LayerMatrix& m : mixer_matrices(layer, d_model)) sum += m.in * m.out;
  return sum;
}

LayerSpec grouped() {
  LayerSpec layer;
  layer.attention = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 12, .v_head_dim = 8};
  layer.mlp.d_ff = 32;
  return layer;
}

TEST_CASE("full layers: keys and values of different widths") {
  const LayerSpec layer = grouped();
  CHECK(kind_name(layer) == "full");
  // 2 heads of 12 + 8 elements, 2 B each: 80 B per token.
  CHECK(at(layer, 100).held == 8000);
  CHECK(at(layer, 100).read == 8000);
  CHECK(at(layer, 100, Dtype::kFp8E4m3).held == 4000);
  // Q 8 x 12, K 2 x 12, V 2 x 8, output 8 x 8, each times a width of 10.
  CHECK(mixers(layer, 10) == 10 * (96 + 24 + 16 + 64));
}

TEST_CASE("windows and chunks hold at most their size") {
  LayerSpec layer = grouped();
  layer.attention.window = 64;
  CHECK(kind_name(layer) == "window");
  CHECK(at(layer, 63).held == 63 * 80);
  CHECK(at(layer, 100).held == 64 * 80);
  CHECK(entry_limit(layer.attention) == 64);
  layer.attention.window = 0;
  layer.attention.chunk = 50;
  CHECK(kind_name(layer) == "chunk");
  CHECK(at(layer, 100).held == 50 * 80);
}

TEST_CASE("a layer that shares a cache holds nothing and still reads it") {
  LayerSpec layer = grouped();
  layer.attention.shares_cache = true;
  layer.attention.has_kv_weights = false;
  CHECK(at(layer, 100).held == 0);
  CHECK(at(layer, 100).read == 8000);
  CHECK(mixers(layer, 10) == 10 * (96 + 64));
}

TEST_CASE("latent layers with a separate index or an earlier layer's index") {
  LayerSpec layer;
  layer.mlp.d_ff = 32;
  layer.attention = {.n_heads = 4,
                     .n_kv_heads = 4,
                     .head_dim = 24,
                     .v_head_dim = 16,
                     .kv_lora_rank = 512,
                     .q_lora_rank = 100,
                     .rope_head_dim = 64};
  layer.attention.head_dim = 24 + 64;
  CHECK(kind_name(layer) == "latent");
  CHECK(at(layer, 10).held == 10 * 576 * 2);
  CHECK(at(layer, 10, Dtype::kFp8E4m3).held == 10 * 576);
  // Q: 7 x 100 and 100 x 4 x 88; latent 7 x 576; expansion 512 x 4 x (24 + 16); output 4 x 16 x 7.
  const std::int64_t latent = 700 + 100 * 352 + 7 * 576 + 512 * 160 + 64 * 7;
  CHECK(mixers(layer, 7) == latent);

  layer.attention.index = {.n_heads = 3, .head_dim = 128, .top_k = 8};
  CHECK(kind_name(layer) == "latent-index");
  // An index key takes 128 B and a 4 B scale in every cache format. A step scores all keys and
  // reads 8 entries. An fp8 entry: 512 + 4 scales of 4 B + 64 elements of 2 B = 656 B.
  CHECK(at(layer, 100).held == 100 * (1152 + 132));
  CHECK(at(layer, 100).read == 100 * 132 + 8 * 1152);
  CHECK(at(layer, 5).read == 5 * (1152 + 132));
  CHECK(at(layer, 100, Dtype::kFp8E4m3).held == 100 * (656 + 132));
  // Index queries 100 x 3 x 128, index key 7 x 128, weights 7 x 3.
  CHECK(mixers(layer, 7) == latent + 100 * 384 + 7 * 128 + 21);
  layer.attention.index.is_borrowed = true;
  CHECK(at(layer, 100).held == 100 * 1152);
  CHECK(at(layer, 100).read == 8 * 1152);
  CHECK(mixers(layer, 7) == latent);
}

TEST_CASE("block-sparse layers hold a bf16 index key per token and read the chosen entries") {
  LayerSpec layer = grouped();
  layer.attention.index = {.n_heads = 4, .head_dim = 16, .top_k = 20};
  CHECK(kind_name(layer) == "block-sparse");
  CHECK(at(layer, 100).held == 100 * (80 + 32));
  CHECK(at(layer, 100).read == 100 * 32 + 20 * 80);
  CHECK(at(layer, 100, Dtype::kFp8E4m3).held == 100 * (40 + 32));
  CHECK(mixers(layer, 10) == 10 * (96 + 24 + 16 + 64) + 10 * 64 + 10 * 16);
}

TEST_CASE("compressed layers: a window, an entry per several tokens, a compressor's state") {
  LayerSpec layer;
  layer.mlp.d_ff = 32;
  layer.attention = {.n_heads = 64,
                     .n_kv_heads = 1,
                     .head_dim = 512,
                     .v_head_dim = 512,
                     .window = 128,
                     .q_lora_rank = 1024,
                     .rope_head_dim = 64,
                     .ratio = 128,
                     .o_groups = 8,
                     .o_lora_rank = 1024};
  CHECK(kind_name(layer) == "compressed");
  // Ratio 128: a window of 1,024 B entries, one entry per 128 tokens, and 128 slots of inputs and
  // gates of 512 in fp32: 524,288 B.
  CHECK(at(layer, 1280).held == 128 * 1024 + 10 * 1024 + 524'288);
  CHECK(at(layer, 1280, Dtype::kFp8E4m3).held == 138 * 584 + 524'288);
  // Ratio 4 overlaps: 8 slots of two sets of 512, and of 128 for the index.
  layer.attention.ratio = 4;
  layer.attention.index = {.n_heads = 64, .head_dim = 128, .top_k = 100};
  const double state = 8 * (2 * 2 * 512) * 4 + 8 * (2 * 2 * 128) * 4;
  CHECK(state == 65'536 + 16'384);
  CHECK(at(layer, 4000).held == 128 * 1024 + 1000 * (1024 + 132) + state);
  CHECK(at(layer, 4000).read == 128 * 1024 + 1000 * 132 + 100 * 1024 + state);
  layer.attention.ratio = 0;
  CHECK(at(layer, 4000).held == 128 * 1024);
}

TEST_CASE("recurrent states do not grow with the sequence") {
  // Gated delta net: 6 states of 8 x 4 in fp32, and 3 columns of 2 * 2 * 4 + 6 * 8 = 64 channels
  // in 16 bits.
  LayerSpec layer;
  layer.mlp.d_ff = 32;
  layer.state = {.kind = StateKind::kGatedDelta,
                 .n_heads = 6,
                 .n_groups = 2,
                 .key_dim = 4,
                 .value_dim = 8,
                 .conv_kernel = 4,
                 .dtype = Dtype::kFp32};
  CHECK(kind_name(layer) == "gated-delta");
  CHECK(at(layer, 1).held == 6 * 8 * 4 * 4 + 3 * 64 * 2);
  CHECK(at(layer, 1'000'000).held == at(layer, 1).held);
  CHECK(at(layer, 1'000'000).read == at(layer, 1).held);
  CHECK(at(layer, 0).held == 0);
  // Q, K, V and gate 10 x (64 + 48), step and decay 10 x 12, convolution 4 x 64, output 48 x 10.
  CHECK(mixers(layer, 10) == 10 * 112 + 120 + 256 + 480);

  // Kimi: 3 x 5 heads' channels, low-rank decay and gate.
  layer.state = {.kind = StateKind::kKimiDelta,
                 .n_heads = 5,
                 .n_groups = 5,
                 .key_dim = 8,
                 .value_dim = 8,
                 .conv_kernel = 4,
                 .gate_rank = 8,
                 .dtype = Dtype::kFp32};
  CHECK(at(layer, 7).held == 5 * 64 * 4 + 3 * 120 * 2);
  CHECK(mixers(layer, 10) == 3 * 10 * 40 + 2 * (10 * 8 + 8 * 40) + 10 * 5 + 4 * 120 + 40 * 10);

  // Mamba 2: 4 heads of 8 channels with 16 states, 2 groups: 32 + 2 * 2 * 16 = 96 channels.
  layer.state = {.kind = StateKind::kMamba2,
                 .n_heads = 4,
                 .n_groups = 2,
                 .key_dim = 16,
                 .value_dim = 8,
                 .conv_kernel = 4,
                 .dtype = Dtype::kBf16};
  CHECK(at(layer, 7).held == 4 * 8 * 16 * 2 + 3 * 96 * 2);
  CHECK(mixers(layer, 10) == 10 * (32 + 96 + 4) + 4 * 96 + 320);
  // Four ranks: one head per rank, and one group per rank although the model has two groups.
  shard_mixers(layer, 4, "m");
  CHECK(layer.state.n_heads == 1);
  CHECK(layer.state.n_groups == 1);
  CHECK(at(layer, 7).held == 8 * 16 * 2 + 3 * (8 + 2 * 16) * 2);

  // Mamba 1: 20 channels with 16 states, a step of rank 3.
  layer.state = {.kind = StateKind::kMamba1,
                 .n_heads = 20,
                 .key_dim = 16,
                 .value_dim = 1,
                 .conv_kernel = 4,
                 .gate_rank = 3,
                 .dtype = Dtype::kFp32};
  CHECK(at(layer, 7).held == 20 * 16 * 4 + 3 * 20 * 2);
  CHECK(mixers(layer, 10) == 10 * 40 + 4 * 20 + 20 * (3 + 32) + 3 * 20 + 200);

  // Attention and a state in parallel (Falcon-H1).
  layer.attention = grouped().attention;
  CHECK(kind_name(layer) == "full + mamba1");
  CHECK(at(layer, 100).held == 8000 + 20 * 16 * 4 + 3 * 20 * 2);
}

TEST_CASE("short convolutions hold the columns before the newest") {
  LayerSpec layer;
  layer.state = {.kind = StateKind::kShortConv, .n_heads = 20, .conv_kernel = 3};
  CHECK(kind_name(layer) == "short-conv");
  CHECK(at(layer, 1'000).held == 2 * 20 * 2);
  // Gates and value 10 x 60, three taps of 20 channels, output 20 x 10.
  CHECK(mixers(layer, 10) == 600 + 60 + 200);
  const auto ops = mixer_operators(layer, {.tokens = 1, .before = 9});
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].flops == 2 * 20);
  CHECK(ops[0].cache_read == 2 * 20 * 2);
}

TEST_CASE("LFM2: convolutions and full attention by its list of layers") {
  const Llm& llm = find_llm("lfm2-1.2b");
  CHECK(std::count_if(llm.layers.begin(), llm.layers.end(),
                      [](const LayerSpec& l) { return kind_name(l) == "short-conv"; }) == 10);
  CHECK(kind_name(llm.layers[2]) == "full");
  // Two thirds of 12,288, a multiple of 256.
  CHECK(llm.layers[0].mlp.d_ff == 8192);
  // Embeddings 65,536 x 2,048, tied; 10 convolutions of 2,048 x (6,144 + 2,048) + 3 x 2,048; 6
  // attention layers of 2 x 2,048^2 + 2 x 2,048 x 512 and 128 for norms; 16 blocks of 3 x 2,048 x
  // 8,192; 33 norms.
  CHECK(parameters(llm) ==
        134'217'728 + 10 * 16'783'360 + 6 * 10'485'888 + 16 * 50'331'648 + 33 * 2'048);
  CHECK(llm.notes.empty());
  json config = catalogue_config("lfm2-1.2b");
  config.erase("layer_types");
  CHECK(has(refusal(config), "layer_types"));
  config = catalogue_config("lfm2-1.2b");
  config["layer_types"][0] = "sliding_attention";
  CHECK(has(refusal(config), "full_attention, conv"));
}

// ---- families ----------------------------------------------------------------------------------

json small(const char* type) {
  return {
      {"model_type", type},          {"hidden_size", 64},        {"num_hidden_layers", 4},
      {"num_attention_heads", 4},    {"num_key_value_heads", 2}, {"head_dim", 16},
      {"intermediate_size", 128},    {"vocab_size", 100},        {"max_position_embeddings", 512},
      {"tie_word_embeddings", false}};
}

json qwen_next() {
  json config = small("qwen3_next");
  config["linear_num_value_heads"] = 4;
  config["linear_num_key_heads"] = 2;
  config["linear_key_head_dim"] = 8;
  config["linear_value_head_dim"] = 8;
  config["linear_conv_kernel_dim"] = 4;
  return config;
}

TEST_CASE("gated delta nets: every fourth layer is full unless a list says otherwise") {
  json config = qwen_next();
  const Llm llm = read(config);
  CHECK(kind_name(llm.layers[2]) == "gated-delta");
  CHECK(kind_name(llm.layers[3]) == "full");
  CHECK(llm.layers[3].attention.gate_dim == 16);
  // A state has the model's 16-bit dtype unless the file sets another dtype.
  CHECK(cache_terms(llm, Dtype::kBf16).state == 3 * (4 * 64 * 2 + 3 * 64 * 2));
  CHECK(cache_terms(llm, Dtype::kBf16).per_token == 2 * 2 * 16 * 2);
  config["mamba_ssm_dtype"] = "float32";
  CHECK(cache_terms(read(config), Dtype::kBf16).state == 3 * (4 * 64 * 4 + 3 * 64 * 2));
  config["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
  CHECK(refusal(config) == "config.json: /layer_types: 3 entries for 4 layers");
  config["layer_types"].push_back("sliding_attention");
  CHECK(has(refusal(config), "/layer_types/3: layers of type \"sliding_attention\""));
  config["layer_types"][3] = "full_attention";
  CHECK(cache_groups(read(config), Dtype::kBf16).size() == 2);
  config.erase("linear_num_key_heads");
  CHECK(refusal(config) == "config.json: /linear_num_key_heads: missing");
}

TEST_CASE("Nemotron's block types are given as letters or words") {
  json config = small("nemotron_h");
  config["hybrid_override_pattern"] = "M-*E";
  config["mamba_num_heads"] = 4;
  config["mamba_head_dim"] = 8;
  config["n_groups"] = 2;
  config["ssm_state_size"] = 16;
  config["n_routed_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 32;
  config["n_shared_experts"] = 1;
  config["moe_shared_expert_intermediate_size"] = 48;
  const Llm llm = read(config);
  CHECK(kind_name(llm.layers[0]) == "mamba2");
  CHECK(kind_name(llm.layers[1]) == "none");
  CHECK(kind_name(llm.layers[2]) == "full");
  CHECK(llm.layers[3].mlp.shared_d_ff == 48);
  CHECK_FALSE(llm.layers[3].mlp.gated);
  json words = config;
  words.erase("hybrid_override_pattern");
  words["layers_block_type"] = {"mamba", "mlp", "attention", "moe"};
  CHECK(parameters(read(words)) == parameters(llm));
  config["hybrid_override_pattern"] = "M-*";
  CHECK(has(refusal(config), "/hybrid_override_pattern: 3 blocks for 4 layers"));
  config["hybrid_override_pattern"] = "M-*X";
  CHECK(has(refusal(config), "/hybrid_override_pattern: expected blocks of the letters"));
  // Experts of a smaller width, between two projections.
  words["moe_latent_size"] = 16;
  CHECK(parameters(read(words)) == parameters(llm) - 8 * 2 * (64 - 16) * 32 + 2 * 64 * 16);
}

TEST_CASE("hybrids with Mamba 2: Granite in some layers and Falcon-H1 in all") {
  json granite = small("granitemoehybrid");
  granite["num_hidden_layers"] = 2;
  granite["layer_types"] = {"mamba", "attention"};
  granite["tie_word_embeddings"] = true;
  granite["intermediate_size"] = 16;
  granite["shared_intermediate_size"] = 32;
  granite["num_local_experts"] = 4;
  granite["num_experts_per_tok"] = 2;
  granite["mamba_n_heads"] = 4;
  granite["mamba_d_head"] = "auto";  // 2 * 64 channels of 4 heads
  granite["mamba_d_state"] = 8;
  // Mamba: input 64 x (128 + 144 + 4), convolution 4 x 144 with a bias, output 128 x 64, three
  // vectors of 4 heads, a norm of 128. Attention: 4 of 64 x 64 minus half of K and V. Each layer: a
  // router 64 x 4, 4 experts 3 x 64 x 16, a shared block 3 x 64 x 32, two norms.
  const std::int64_t mamba = 64 * 276 + 4 * 144 + 144 + 128 * 64 + 12 + 128;
  const std::int64_t attention = 64 * 64 * 2 + 64 * 32 * 2;
  const std::int64_t block = 64 * 4 + 4 * 3 * 64 * 16 + 3 * 64 * 32 + 2 * 64;
  CHECK(parameters(read(granite)) == 100 * 64 + mamba + attention + 2 * block + 64);
  granite["num_local_experts"] = 0;  // only the shared block
  CHECK(parameters(read(granite)) ==
        100 * 64 + mamba + attention + 2 * (3 * 64 * 32 + 2 * 64) + 64);
  granite["layer_types"] = {"mamba", "linear"};
  CHECK(has(refusal(granite), "/layer_types/1: layers of type \"linear\" are not modelled"));

  json falcon = small("falcon_h1");
  falcon["num_hidden_layers"] = 1;
  falcon["mamba_d_ssm"] = 96;
  falcon["mamba_n_heads"] = 3;
  falcon["mamba_d_head"] = 32;
  falcon["mamba_d_state"] = 8;
  const Llm both = read(falcon);
  CHECK(kind_name(both.layers[0]) == "full + mamba2");
  // Input 64 x (96 + 112 + 3), convolution 4 x 112 with a bias, output 96 x 64, three vectors of 3
  // heads, and no norm unless the file sets one; 3 states of 32 x 8 and 3 columns of 112.
  CHECK(parameters(both) ==
        2 * 6400 + attention + 64 * 211 + 448 + 112 + 96 * 64 + 9 + 3 * 64 * 128 + 2 * 64 + 64);
  CHECK(cache_terms(both, Dtype::kBf16).state == 3 * 32 * 8 * 2 + 3 * 112 * 2);
  falcon["mamba_rms_norm"] = true;
  CHECK(parameters(read(falcon)) == parameters(both) + 96);
}

TEST_CASE("Kimi-Linear counts layers from one") {
  json config = small("kimi_linear");
  config["num_hidden_layers"] = 2;
  config["num_key_value_heads"] = 4;
  config["kv_lora_rank"] = 32;
  config["qk_rope_head_dim"] = 8;
  config["qk_nope_head_dim"] = 16;
  config["v_head_dim"] = 16;
  config["first_k_dense_replace"] = 1;
  config["num_experts"] = 4;
  config["num_experts_per_token"] = 1;
  config["num_shared_experts"] = 1;
  config["moe_intermediate_size"] = 16;
  config["linear_attn_config"] = {
      {"full_attn_layers", {2}}, {"kda_layers", {1}}, {"num_heads", 2}, {"head_dim", 16}};
  const Llm llm = read(config);
  CHECK(kind_name(llm.layers[0]) == "kimi-delta");
  CHECK(kind_name(llm.layers[1]) == "latent");
  // Delta: Q, K, V 3 x 64 x 32; decay and gate 2 x (64 x 16 + 16 x 32); step 64 x 2; convolutions 4
  // x 96; output 32 x 64; 2 + 32 + 16 in vectors; a dense block. Latent: Q 64 x 4 x 24, latent 64 x
  // 40, expansion 32 x 4 x 32, output 64 x 64, a norm of 32; router, 4 experts, a shared expert, 4
  // biases.
  const std::int64_t delta =
      3 * 2048 + 2 * (1024 + 512) + 128 + 384 + 2048 + 50 + 3 * 64 * 128 + 128;
  const std::int64_t latent =
      64 * 96 + 64 * 40 + 32 * 128 + 4096 + 32 + 256 + 5 * 3 * 64 * 16 + 4 + 128;
  CHECK(parameters(llm) == 2 * 6400 + delta + latent + 64);
  // States are fp32 regardless of the file's dtype; convolutions, decay and step bias are stored in
  // fp32.
  CHECK(cache_terms(llm, Dtype::kFp8E4m3).state == 2 * 256 * 4 + 3 * 96 * 2);
  CHECK(llm.extra_bytes == 2 * (384 + 34) + 2 * 4);
  config["linear_attn_config"]["kda_layers"] = {1, 2};
  CHECK(has(refusal(config), "/linear_attn_config/kda_layers/1: the layer is among"));
  config["linear_attn_config"]["full_attn_layers"] = {3};
  CHECK(has(refusal(config), "/linear_attn_config/full_attn_layers/0: expected an integer"));
}

TEST_CASE("wrappers, null values and numbers in Python's notation") {
  json outer{{"model_type", "some_vl"}, {"tie_word_embeddings", true}, {"dtype", "float16"}};
  outer["text_config"] = small("qwen3");
  outer["text_config"].erase("tie_word_embeddings");
  CHECK(read(outer).tied_embeddings);
  CHECK(read(outer).published_dtype == Dtype::kFp16);
  outer["text_config"]["sliding_window"] = nullptr;
  CHECK(read(outer).n_layers() == 4);
  json thinker{{"model_type", "x"}, {"thinker_config", {{"text_config", small("qwen3")}}}};
  CHECK(read(thinker).n_layers() == 4);

  const fs::path folder = fresh("python_json");
  std::string text = small("llama").dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity, -Infinity, NaN], "a": "NaN, Infinity", )");
  write(folder / "config.json", text);
  CHECK(read_hf_config_file(folder / "config.json", "m").n_layers() == 4);
  write(folder / "config.json", R"({"hidden_size": Infinity, "model_type": "llama"})");
  CHECK_THROWS_AS((void)read_hf_config_file(folder / "config.json", "m"), InputError);

  // A separate quantisation file under its usual name.
  write(folder / "own.json", small("llama").dump());
  write(folder / "own.quant.json", R"({"quantization": {"quant_algo": "FP8"}})");
  CHECK(published_formats(read_hf_config_file(folder / "own.json", "m")) == "fp8-tensor");
}

TEST_CASE("an unknown family is read only on request and keys that change memory are listed") {
  json config = small("brand_new");
  CHECK(has(refusal(config), "/model_type: unknown model_type \"brand_new\""));
  CHECK(has(refusal(config), "kvsim_family"));
  config["kvsim_family"] = "qwen3";
  const Llm llm = read(config);
  CHECK(has(llm.notes.at(0), "read as a model of type qwen3"));
  config["kvsim_family"] = "qwen33";
  CHECK(has(refusal(config), "/kvsim_family: unknown model_type \"qwen33\"; did you mean"));

  json odd = small("llama");
  odd["linear_attn_config"] = {{"num_heads", 4}};
  CHECK(has(refusal(odd), "/linear_attn_config: linear-attention layers is not modelled for"));
  odd.erase("linear_attn_config");
  odd["super_head_count"] = 3;
  CHECK(has(read(odd).notes.at(0), "not read, and may change memory: super_head_count"));
  odd["super_head_count"] = nullptr;
  CHECK(read(odd).notes.empty());
  // The note has a limited length.
  for (int i = 10; i < 40; ++i) odd["super_head_count_" + std::to_string(i)] = 3;
  odd[std::string(5000, 'a') + "_head_count"] = 3;
  const std::string many = read(odd).notes.at(0);
  CHECK(many.size() < 1000);
  CHECK(many.ends_with("super_head_count_24, and 15 more"));
  json further = small("llama");
  further["num_nextn_predict_layers"] = 1;
  CHECK(has(read(further).notes.at(0), "num_nextn_predict_layers announces layers"));
}

TEST_CASE("a configuration with one broken value is read or refused for any value") {
  const std::vector<json> values{nullptr,
                                 -1,
                                 0,
                                 7,
                                 1e9,
                                 "x",
                                 json::array(),
                                 json::object(),
                                 true,
                                 1.5,
                                 json::array({1, 2, 3}),
                                 json::array({"a"}),
                                 json::array({nullptr})};
  int accepted = 0, refused = 0;
  for (const char* name :
       {"qwen3.5-27b", "nemotron-3-nano-30b-a3b", "kimi-linear-48b-a3b", "jamba-1.5-mini",
        "deepseek-v4-flash", "glm-5.2", "minimax-m3", "gemma-4-26b-a4b", "mimo-v2.5",
        "llama-4-scout", "falcon-h1-34b", "granite-4.0-h-small", "step-3.7-flash"}) {
    const json config = catalogue_config(name);
    const bool is_wrapped = config.contains("text_config");
    const json& text = is_wrapped ? config.at("text_config") : config;
    for (const auto& [key, value] : text.items()) {
      for (std::size_t v = 0; v <= values.size(); ++v) {
        json broken = config;
        json& at = is_wrapped ? broken["text_config"] : broken;
        if (v < values.size()) {
          at[key] = values[v];
        } else {
          at.erase(key);
        }
        INFO(name, ": ", key, " = ", v < values.size() ? values[v].dump() : "absent");
        try {
          const Llm llm = read(broken);
          CHECK(held_bytes(llm, 131072, Dtype::kFp8E4m3) >= 0);
          CHECK(published_weight_bytes(llm) > Bytes{});
          ++accepted;
        } catch (const InputError& error) {
          CHECK(has(error.what(), "config.json: /"));
          ++refused;
        }
      }
    }
  }
  CHECK(accepted > 500);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace kvsim
