// Quantised checkpoints: bytes of each part according to their two configuration files.

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/llm/catalogue.hpp"
#include "models/llm/hf/module_names.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::write;

// A dense model and one with experts, small enough to count by hand.
constexpr std::int64_t kWidth = 256, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kFfn = 512;
constexpr std::int64_t kVocabulary = 1000, kLayers = 3, kNumExperts = 4, kExpertFfn = 128;

json dense() {
  return {{"model_type", "llama"},           {"hidden_size", kWidth},
          {"num_hidden_layers", kLayers},    {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads}, {"head_dim", kHeadDim},
          {"intermediate_size", kFfn},       {"vocab_size", kVocabulary},
          {"max_position_embeddings", 4096}, {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}
json with_experts() {
  json config = dense();
  config["model_type"] = "qwen3_moe";
  config["num_experts"] = kNumExperts;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = kExpertFfn;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = json::array();
  config["norm_topk_prob"] = true;
  return config;
}
Llm read(const json& config, const json& quantization = nullptr) {
  std::optional<Field> other;
  if (!quantization.is_null()) other = Field::wrap(quantization, "hf_quant_config.json");
  return read_hf_config(Field::wrap(config, "config.json"), "m", other);
}
std::string refusal(const json& config, const json& quantization = nullptr) {
  try {
    (void)read(config, quantization);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}
json modelopt(const json& quantization) {
  return {{"producer", {{"name", "modelopt"}}}, {"quantization", quantization}};
}

/// Matrices [in, out] of a layer: attention's inputs, its output, and a block of `width`.
struct Matrix {
  std::int64_t in, out;
};
const std::vector<Matrix> kInputs{
    {kWidth, kHeads* kHeadDim}, {kWidth, kKvHeads* kHeadDim}, {kWidth, kKvHeads* kHeadDim}};
const std::vector<Matrix> kOutput{{kHeads * kHeadDim, kWidth}};
std::vector<Matrix> block(std::int64_t width) {
  return {{kWidth, width}, {kWidth, width}, {width, kWidth}};
}
std::int64_t values(const std::vector<Matrix>& matrices) {
  std::int64_t sum = 0;
  for (const Matrix& m : matrices) sum += m.in * m.out;
  return sum;
}
/// NVFP4: 4 bits per value, one byte per 16 values, two fp32 values per matrix.
std::int64_t nvfp4(const std::vector<Matrix>& matrices) {
  const std::int64_t n = values(matrices);
  return n / 2 + n / 16 + 8 * std::ssize(matrices);
}
std::int64_t published(const Llm& llm) { return published_weight_bytes(llm).count(); }
/// Bytes of all parameters in bf16.
std::int64_t plain(const Llm& llm) { return 2 * parameters(llm); }

TEST_CASE("fp8 with scales by block: layers are fp8 while head and embedding stay") {
  json config = dense();
  config["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  const Llm llm = read(config);
  std::int64_t packed = 0, scales = 0;
  for (const auto& matrices : {kInputs, kOutput, block(kFfn)}) {
    packed += values(matrices);
    for (const Matrix& m : matrices) scales += (m.in / 128) * (m.out / 128) * 4;
  }
  CHECK(published(llm) == plain(llm) - kLayers * packed + kLayers * scales);
  CHECK(published_formats(llm) == "fp8-block");
  CHECK(llm.published_dtype == Dtype::kFp8E4m3);
  CHECK(default_kv_dtype(llm, llm.published_dtype) == Dtype::kBf16);
  // When loaded in bf16, it equals an unquantised model.
  CHECK(loaded_weight_bytes(llm, WeightStore{Dtype::kBf16, nullptr}).count() == plain(llm));
  config["quantization_config"].erase("quant_method");  // some files contain only the block size
  CHECK(published(read(config)) == published(llm));
  config["quantization_config"]["weight_block_size"] = {64, 64};
  CHECK(published(read(config)) == plain(llm) - kLayers * packed + 4 * kLayers * scales);
}

TEST_CASE("hf_quant_config.json next to config.json gives the format and the cache's") {
  const json fp8 = modelopt(
      {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}});
  const Llm llm = read(dense(), fp8);
  const std::int64_t packed = values(kInputs) + values(kOutput) + values(block(kFfn));
  CHECK(published(llm) == plain(llm) - kLayers * packed + kLayers * 7 * 8);
  CHECK(default_kv_dtype(llm, llm.published_dtype) == Dtype::kFp8E4m3);
  CHECK(default_kv_dtype(llm, Dtype::kBf16) == Dtype::kBf16);

  // By path: the folder's second file is read only next to a config.json.
  const fs::path folder = fresh("quantised");
  write(folder / "config.json", dense().dump());
  write(folder / "other.json", dense().dump());
  CHECK(published(read_hf_config_file(folder / "config.json", "m")) == plain(llm));
  write(folder / "hf_quant_config.json", fp8.dump());
  CHECK(published(read_hf_config_file(folder / "config.json", "m")) == published(llm));
  CHECK(published(read_hf_config_file(folder / "other.json", "m")) == plain(llm));
  for (const char* empty : {"{}", R"({"quantization": {}})"}) {
    write(folder / "hf_quant_config.json", empty);
    const Llm plain = read_hf_config_file(folder / "config.json", "m");
    CHECK(std::any_of(plain.notes.begin(), plain.notes.end(), [](const std::string& note) {
      return note.find("hf_quant_config.json: names no quantised weights: all count as bf16") !=
             std::string::npos;
    }));
  }
  write(folder / "hf_quant_config.json", "{");
  CHECK_THROWS_AS((void)read_hf_config_file(folder / "config.json", "m"), InputError);

  // Both files may contain the key if they agree.
  json both = dense();
  both["quantization_config"] = {{"quant_method", "modelopt"},
                                 {"quant_algo", "FP8"},
                                 {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}},
                                 {"ignore", {"lm_head"}}};
  CHECK(published(read(both, fp8)) == published(llm));
  CHECK(read(both, fp8).notes.empty());
  // If they disagree, config.json takes precedence and a note reports it.
  both["quantization_config"]["quant_algo"] = "NVFP4";
  const Llm disputed = read(both, fp8);
  CHECK(published_formats(disputed) == "nvfp4");
  REQUIRE(disputed.notes.size() == 1);
  CHECK(has(disputed.notes.front(),
            "hf_quant_config.json does not agree with config.json: /quantization_config"));
}

TEST_CASE("excluded modules stay in 16 bits layer by layer") {
  const auto bytes = [&](const json& excluded) {
    return published(read(with_experts(), modelopt({{"quant_algo", "NVFP4"},
                                                    {"kv_cache_quant_algo", nullptr},
                                                    {"group_size", 16},
                                                    {"exclude_modules", excluded}})));
  };
  const std::int64_t all = plain(read(with_experts()));
  const std::int64_t inputs = 2 * values(kInputs) - nvfp4(kInputs);
  const std::int64_t output = 2 * values(kOutput) - nvfp4(kOutput);
  const std::int64_t experts =
      kNumExperts * (2 * values(block(kExpertFfn)) - nvfp4(block(kExpertFfn)));
  CHECK(bytes(json::array()) == all - kLayers * (inputs + output + experts));
  CHECK(bytes({"lm_head"}) == all - kLayers * (inputs + output + experts));
  for (const json& attention :
       {json{"model.layers.*.self_attn*"}, json{"*.self_attn.*"}, json{"self_attn"},
        json{"re:.*self_attn.*"}, json{"model.layers.*.self_attn"},
        json{"language_model.model.layers.*.self_attn*"},
        json{"model.layers.0.self_attn", "model.layers.1.self_attn", "model.layers.2.self_attn"}}) {
    INFO(attention.dump());
    CHECK(bytes(attention) == all - kLayers * experts);
  }
  CHECK(bytes({"model.layers.*.self_attn.o_proj"}) == all - kLayers * (inputs + experts));
  CHECK(bytes({"model.layers.1.*"}) == all - (kLayers - 1) * (inputs + output + experts));
  CHECK(bytes({"model.layers.0", "*.mlp.experts*"}) == all - (kLayers - 1) * (inputs + output));
  // Names that match no part: a router, a vision tower, a layer that does not exist.
  CHECK(bytes({"gate", "mlp.gate", "vision_tower*", "model.layers.7*", "q"}) == bytes({"lm_head"}));
  CHECK(bytes({"*"}) == all);
  // Each attention projection has a separate format; a feed-forward block has one format.
  const std::vector<Matrix> key{kInputs[1]};
  CHECK(bytes({"*.self_attn.k_proj"}) ==
        bytes({"lm_head"}) + kLayers * (2 * values(key) - nvfp4(key)));
  CHECK(has(refusal(with_experts(), modelopt({{"quant_algo", "NVFP4"},
                                              {"exclude_modules", {"*.experts.0.up_proj"}}})),
            "experts.0.gate_proj and model.layers.0.mlp.experts.0.up_proj are stored in different "
            "formats"));
  CHECK(has(
      refusal(with_experts(), modelopt({{"quant_algo", "NVFP4"}, {"exclude_modules", {"re:(("}}})),
      "expected a regular expression"));
  CHECK(has(refusal(with_experts(), modelopt({{"quant_algo", "NVFP4"}, {"exclude_modules", {3}}})),
            "exclude_modules/0"));
}

TEST_CASE("mixed precision: module names select formats, also for the head") {
  json layers;
  for (int i = 0; i < kLayers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    for (const char* one : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      layers[at + "self_attn." + one] = {{"quant_algo", "FP8"}};
    }
    if (i > 0) layers[at + "mlp.experts"] = {{"quant_algo", "NVFP4"}, {"group_size", 16}};
  }
  layers["lm_head"] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  const Llm llm = read(with_experts(), modelopt({{"quant_algo", "MIXED_PRECISION"},
                                                 {"kv_cache_quant_algo", "FP8"},
                                                 {"quantized_layers", layers}}));
  const std::int64_t head = kWidth * kVocabulary;
  CHECK(published(llm) == plain(llm) - kLayers * (values(kInputs) + values(kOutput) - 4 * 8) -
                              (kLayers - 1) * kNumExperts *
                                  (2 * values(block(kExpertFfn)) - nvfp4(block(kExpertFfn))) -
                              (2 * head - head / 2 - head / 16 - 4));
  CHECK(llm.published_dtype == Dtype::kFp4);
  CHECK(published_formats(llm) == "fp8-tensor + nvfp4 + nvfp4-w4a16");
  // The cost model distinguishes layers of two formats.
  CHECK(llm.layers[0].mlp.format != llm.layers[1].mlp.format);
}

TEST_CASE("compressed-tensors: groups of weights by type, bits and scale") {
  struct Case {
    json weights;
    bool weight_only;
    std::string formats;
  };
  const std::vector<Case> cases{
      {{{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}, false, "fp8-channel"},
      {{{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}, false, "fp8-tensor"},
      {{{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}},
       false,
       "fp8-block"},
      {{{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}, false, "w8a8-int8"},
      {{{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}, true, "int8-channel"},
      {{{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 128}},
       true,
       "w4a16 with shapes"},
      {{{"num_bits", 4}, {"type", "int"}, {"group_size", 32}},
       true,
       "w4a16 in groups of 32 with shapes"},
      {{{"num_bits", 4}, {"type", "int"}, {"group_size", 128}, {"symmetric", false}},
       true,
       "w4a16-zeros with shapes"},
      {{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}},
       false,
       "nvfp4"},
      {{{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}},
       true,
       "nvfp4-w4a16"},
      {{{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}, true, "mxfp4"}};
  for (const Case& each : cases) {
    INFO(each.weights.dump());
    json group{{"targets", {"Linear"}}, {"weights", each.weights}, {"input_activations", nullptr}};
    if (!each.weight_only) group["input_activations"] = {{"num_bits", 8}};
    json config = dense();
    config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                     {"config_groups", {{"group_0", group}}},
                                     {"ignore", {"lm_head"}},
                                     {"kv_cache_scheme", nullptr}};
    CHECK(published_formats(read(config)) == each.formats);
  }
  // The format of Kimi-K2.5: only experts, 4 bits in groups of 32 with a 16-bit scale each.
  json config = with_experts();
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}},
          {"weights", {{"num_bits", 4}, {"type", "int"}, {"group_size", 32}}}}}}},
      {"ignore", {"lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"}}};
  const std::int64_t n = kLayers * kNumExperts * values(block(kExpertFfn));
  const Llm llm = read(config);
  // The file also stores the shape of each matrix, two int32.
  CHECK(published(llm) == plain(llm) - 2 * n + n / 2 + n / 32 * 2 + kLayers * kNumExperts * 3 * 8);
}

TEST_CASE("AWQ, GPTQ and bitsandbytes keep head and embedding") {
  const std::int64_t n = kLayers * (values(kInputs) + values(kOutput) + values(block(kFfn)));
  const auto packed = [&](const json& quantization) {
    json config = dense();
    config["quantization_config"] = quantization;
    const Llm llm = read(config);
    return published(llm) - (plain(llm) - 2 * n);
  };
  CHECK(packed({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}}) ==
        n / 2 + n / 128 * 2 + n / 256);
  CHECK(packed({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}}) ==
        n / 2 + n / 64 * 2 + n / 128);
  const std::int64_t inputs = kLayers * (3 * kWidth + kHeads * kHeadDim + 2 * kWidth + kFfn);
  CHECK(packed({{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 128}}) ==
        n + n / 128 * 3 + 4 * inputs);
  // Bit widths without a format in scenario files: 16 bits of scale and a zero per group.
  CHECK(packed({{"quant_method", "awq"}, {"bits", 8}, {"group_size", 128}}) == n + n / 128 * 3);
  CHECK(packed({{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}) == n / 2 + n / 64 * 4);
  CHECK(packed({{"quant_method", "awq"},
                {"bits", 4},
                {"group_size", 128},
                {"modules_to_not_convert", {"mlp"}}}) >
        packed({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}}));
}

TEST_CASE("files of AutoGPTQ and AutoAWQ next to config.json are read as quantization_config") {
  const auto of_config = [](const json& quantization) {
    json config = dense();
    config["quantization_config"] = quantization;
    return read(config);
  };
  const fs::path folder = fresh("quantised_by_auto");
  write(folder / "config.json", dense().dump());
  const auto of_file = [&](const char* name, const json& content) {
    write(folder / name, content.dump());
    Llm out = read_hf_config_file(folder / "config.json", "m");
    fs::remove(folder / name);
    return out;
  };
  const auto is_same = [](const Llm& a, const Llm& b) {
    return a.layers == b.layers && published(a) == published(b) && a.notes == b.notes &&
           published_formats(a) == published_formats(b) && a.published_dtype == b.published_dtype;
  };
  for (const int bits : {2, 4, 8}) {
    for (const int group : {32, 128, -1}) {
      const Llm gptq = of_config({{"quant_method", "gptq"}, {"bits", bits}, {"group_size", group}});
      const Llm awq = of_config({{"quant_method", "awq"}, {"bits", bits}, {"group_size", group}});
      CHECK(published(gptq) < plain(gptq));
      const json own{
          {"bits", bits}, {"group_size", group}, {"damp_percent", 0.01}, {"desc_act", false}};
      const json auto_awq{
          {"w_bit", bits}, {"q_group_size", group}, {"zero_point", true}, {"version", "GEMM"}};
      CHECK(is_same(of_file("quantize_config.json", own), gptq));
      CHECK(is_same(of_file("quant_config.json", auto_awq), awq));
      CHECK(is_same(of_file("quantize_config.json", auto_awq), awq));
      json named = own;
      named["quant_method"] = "awq";
      CHECK(is_same(of_file("quantize_config.json", named), awq));
    }
  }
  const auto refused = [&](const char* name, const json& content) -> std::string {
    write(folder / name, content.dump());
    std::string out = "accepted";
    try {
      (void)read_hf_config_file(folder / "config.json", "m");
    } catch (const InputError& error) {
      out = error.what();
    }
    fs::remove(folder / name);
    return out;
  };
  CHECK(has(refused("quantize_config.json", {{"bits", 3}, {"group_size", 128}}),
            "quantize_config.json: /bits: expected 2, 4 or 8"));
  CHECK(has(refused("quant_config.json", {{"w_bit", 3}, {"q_group_size", 128}}),
            "quant_config.json: /w_bit: expected 2, 4 or 8"));
  CHECK(has(refused("quant_config.json", {{"w_bit", 4}, {"q_group_size", 0}}), "/q_group_size"));
  CHECK(has(refused("quantize_config.json", json::object()), "bits"));
  // config.json takes precedence, and a note reports it.
  json both = dense();
  both["quantization_config"] = {{"quant_method", "fp8"}};
  write(folder / "config.json", both.dump());
  const Llm disputed = of_file("quantize_config.json", {{"bits", 4}, {"group_size", 128}});
  CHECK(published_formats(disputed) == "fp8-tensor");
  REQUIRE(disputed.notes.size() == 1);
  CHECK(has(disputed.notes.front(), "quantize_config.json does not agree with"));
}

TEST_CASE("an unknown quantisation is refused and never counted as bf16") {
  CHECK(has(refusal(dense(), modelopt({{"quant_algo", "NVFP5"}})),
            "hf_quant_config.json: /quantization/quant_algo: unknown quantisation \"NVFP5\"; did "
            "you mean \"NVFP4\"?"));
  CHECK(has(refusal(dense(), modelopt({{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "NVFP4"}})),
            "/quantization/kv_cache_quant_algo: expected FP8, INT8 or null"));
  CHECK(has(refusal(dense(), modelopt({{"quant_algo", "MIXED_PRECISION"}})), "quantized_layers"));
  json config = dense();
  config["quantization_config"] = {{"bits", 4}};
  CHECK(has(refusal(config), "/quantization_config/quant_method"));
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"config_groups",
       {{"group_0", {{"targets", {"Linear"}}, {"weights", {{"num_bits", 3}, {"type", "int"}}}}}}}};
  CHECK(has(refusal(config), "int 3-bit weights with a scale by tensor"));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"quant_algo", "MIXED_PRECISION"}};
  CHECK(has(refusal(config), "with quant_method fp8 is not modelled"));
  // Explicitly unquantised.
  CHECK(published(read(dense(), modelopt({{"quant_algo", nullptr}}))) == plain(read(dense())));
}

TEST_CASE("patterns of modules") {
  const auto matches = [](const char* pattern, const char* name) {
    return hf::ModulePattern{Field::wrap(pattern, "p")}.matches(name);
  };
  CHECK(matches("lm_head", "language_model.lm_head"));
  CHECK_FALSE(matches("head", "lm_head"));
  CHECK(matches("model.layers.1", "model.layers.1.mlp.up_proj"));
  CHECK_FALSE(matches("model.layers.1", "model.layers.11.mlp.up_proj"));
  CHECK(matches("model.layers.1*", "model.layers.11.mlp.up_proj"));  // a glob matches characters
  CHECK_FALSE(matches("model.layers.1.*", "model.layers.11.mlp.up_proj"));
  CHECK(matches("*experts*", "model.layers.3.mlp.experts.0.up_proj"));
  CHECK_FALSE(matches("re:mlp", "model.layers.3.mlp.up_proj"));
  CHECK(matches("re:.*mlp", "model.layers.3.mlp.up_proj"));
  CHECK_FALSE(matches("", "lm_head"));
}

}  // namespace
}  // namespace kvsim
