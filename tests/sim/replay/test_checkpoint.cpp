// Checkpoints of decoders: properties that config.json and the tensors have to agree on, and the
// frequencies of the rotation.

#include <filesystem>
#include <string>
#include <vector>

#include "models/units/error.hpp"
#include "sim/decoder/checkpoint.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/random_model.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::random_model;
using test::RandomModel;

TEST_CASE("broken checkpoints are refused with their place") {
  const fs::path good = random_model("broken-checkpoint");
  const Bytes enough{1 << 30};
  CHECK_THROWS_AS((void)read_checkpoint(good, Bytes{1000}), InputError);
  const auto complaint = [&](const std::string& from, const std::string& to) {
    std::string text = RandomModel{}.config();
    text.replace(text.find(from), from.size(), to);
    test::write(good / "config.json", text);
    try {
      (void)read_checkpoint(good, enough);
    } catch (const InputError& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  CHECK(test::has(complaint("qwen3", "mamba"), "Llama family"));
  CHECK(test::has(complaint("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5"),
                  "model.layers.4.input_layernorm.weight"));
  CHECK(test::has(complaint("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"),
                  "num_hidden_layers: expected the layers of the weights, got 3, and there is "
                  "model.layers.3.input_layernorm.weight"));
  CHECK(test::has(complaint("\"intermediate_size\": 48", "\"intermediate_size\": 47"),
                  "mlp.gate_proj.weight: expected shape [47, 32], got [48, 32]"));
  CHECK(test::has(complaint("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
                  "a divisor of num_attention_heads"));
  CHECK(test::has(complaint("\"rope_theta\": 1000.0",
                            "\"rope_theta\": 1000.0, \"rope_scaling\": {\"rope_type\": \"yarn\"}"),
                  "rope_type"));
}

TEST_CASE("tensors follow the type and the keys of the configuration, and none is left unread") {
  const auto complaint = [](const RandomModel& model, const RandomModel& stated) {
    const fs::path folder = random_model("tensors", model);
    test::write(folder / "config.json", stated.config());
    try {
      (void)read_checkpoint(folder, Bytes{1 << 30});
    } catch (const InputError& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  const RandomModel qwen3;
  const RandomModel plain{.type = "llama", .keys = R"("head_dim": 8)", .head_norms = false};
  const auto with = [&](const std::string& keys) {
    return RandomModel{.type = "llama", .keys = keys, .head_norms = false};
  };
  const auto as = [](RandomModel model, const char* type) {
    model.type = type;
    return model;
  };
  const auto and_tensor = [](RandomModel model, const char* name, std::vector<std::int64_t> shape) {
    model.more.push_back({name, TensorType::kF32, std::move(shape)});
    return model;
  };
  CHECK(complaint(plain, plain).empty());
  CHECK(complaint(as(plain, "mistral"), as(plain, "mistral")).empty());

  // Biases: the key without the tensors, and the tensors without the key.
  const RandomModel attention = with(R"("attention_bias": true)");
  const RandomModel mlp = with(R"("mlp_bias": true)");
  CHECK(test::has(complaint(plain, attention),
                  "expected a tensor model.layers.0.self_attn.q_proj.bias, got none"));
  CHECK(test::has(complaint(attention, plain),
                  "expected only tensors that config.json implies, got "
                  "model.layers.0.self_attn.k_proj.bias, which would not be read"));
  CHECK(test::has(complaint(plain, mlp), "expected a tensor model.layers.0.mlp.gate_proj.bias"));
  CHECK(test::has(complaint(mlp, plain), "model.layers.0.mlp.down_proj.bias, which would not"));
  CHECK(test::has(complaint(plain, as(plain, "qwen2")), "self_attn.q_proj.bias, got none"));
  CHECK(test::has(complaint(attention, as(attention, "mistral")),
                  "/attention_bias: expected false: mistral has no such biases, got true"));
  CHECK(test::has(complaint(mlp, as(mlp, "qwen3")),
                  "/mlp_bias: expected false: qwen3 has no such biases, got true"));

  // Norms per head, and tensors that exist in no model type.
  CHECK(test::has(complaint(attention, as(attention, "qwen3")), "self_attn.q_norm.weight, got"));
  CHECK(test::has(complaint(qwen3, as(qwen3, "llama")),
                  "self_attn.k_norm.weight, which would not be read"));
  const char* more = "model.layers.1.post_feedforward_layernorm.weight";
  CHECK(test::has(complaint(and_tensor(plain, more, {test::kWidth}), plain), more));
  CHECK(complaint(and_tensor(plain, "model.layers.0.self_attn.rotary_emb.inv_freq", {4}), plain)
            .empty());

  // The output matrix.
  const RandomModel tied = with(R"("tie_word_embeddings": true)");
  CHECK(complaint(tied, tied).empty());
  CHECK(test::has(complaint(tied, plain), "expected a tensor lm_head.weight, got none"));
  CHECK(test::has(complaint(tied, with(R"("tie_word_embeddings": false)")),
                  "\"tie_word_embeddings\": true in config.json"));
  CHECK(test::has(complaint(plain, tied),
                  "lm_head.weight: expected the values of model.embed_tokens.weight"));
  const std::vector<std::int64_t> head{test::kVocab, test::kWidth};
  CHECK(complaint(and_tensor(tied, "lm_head.weight", head), tied).empty());

  // Partially rotated heads.
  CHECK(complaint(plain, with(R"("partial_rotary_factor": 1.0)")).empty());
  CHECK(test::has(complaint(plain, with(R"("partial_rotary_factor": 0.5)")),
                  "/partial_rotary_factor: expected 1: whole heads are rotated here, got 0.5"));
  CHECK(test::has(complaint(plain, with(R"("rope_parameters": {"partial_rotary_factor": 0.25})")),
                  "/rope_parameters/partial_rotary_factor"));
}

TEST_CASE("llama3 scales slow waves only, and linear scaling all of them") {
  const fs::path folder = random_model("scaled");
  const auto frequencies = [&](const std::string& scaling) {
    std::string text = RandomModel{}.config();
    const std::string theta = "\"rope_theta\": 1000.0";
    text.replace(text.find(theta), theta.size(), theta + ", \"rope_scaling\": " + scaling);
    test::write(folder / "config.json", text);
    return read_checkpoint(folder, Bytes{1 << 30}).shape.inv_freq;
  };
  const std::vector<double> plain = frequencies("null");
  const std::vector<double> linear = frequencies(R"({"type": "linear", "factor": 4})");
  const std::vector<double> llama = frequencies(
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
          "original_max_position_embeddings": 64})");
  REQUIRE(plain.size() == 4);
  for (std::size_t j = 0; j < 4; ++j) CHECK(linear[j] == plain[j] / 4);
  // 64 positions contain 10.2, 1.8, 0.3 and 0.06 waves: kept, blended, divided, divided.
  CHECK(llama[0] == plain[0]);
  CHECK(llama[1] < plain[1]);
  CHECK(llama[1] > plain[1] / 8);
  CHECK(llama[2] == plain[2] / 8);
  CHECK(llama[3] == plain[3] / 8);
}

}  // namespace
}  // namespace kvsim
