#include <string>

#include <nlohmann/json.hpp>

#include "models/cost/iteration/layer_split.hpp"
#include "models/json/field.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/draft_head.hpp"
#include "models/llm/vision.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {
using nlohmann::json;

// Two layers of width 4, patches of 2 x 2 pixels in one frame and one channel, four patches per
// token.
constexpr VisionEncoder kSmall{.width = 4,
                               .mlp_width = 6,
                               .layers = 2,
                               .patch_values = 4,
                               .positions = 9,
                               .patches_per_token = 4,
                               .output_width = 10,
                               .extra_mergers = 0,
                               .image_tokens = 8};

std::string error_text(const json& config) {
  try {
    (void)read_hf_config(Field::wrap(config, "config.json"), "own");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("parameters of a vision encoder, by hand and as tensors count them") {
  // Patches 4 x 4 + 4, positions 9 x 4; a layer: 4 products of 4 x 4 with biases, 4 x 6 + 6 and
  // 6 x 4 + 4, two norms of 8; the merger: 16 x 16 + 16, 16 x 10 + 10, a norm of 8.
  CHECK(vision_parameters(kSmall) == 20 + 36 + 2 * (80 + 30 + 28 + 16) + 272 + 170 + 8);
  VisionEncoder deep = kSmall;
  deep.extra_mergers = 3;  // each with a norm over the 16 values of a merged token
  CHECK(vision_parameters(deep) == vision_parameters(kSmall) + 3 * (272 + 170 + 32));
  // Qwen3.6-27B: 460.7 M of the checkpoint's 27,781,427,952 elements are vision.
  REQUIRE(find_llm("qwen3.5-27b").vision);
  CHECK(vision_parameters(*find_llm("qwen3.5-27b").vision) == 460'730'096);
}

TEST_CASE("peak of a vision encoder, by hand") {
  // 8 tokens are 32 patches: pixels 4, state and norm 8; Q, K, V 12; Q and K 8, in fp32 8 and 8.
  CHECK(vision_peak(kSmall, 8, 1) == Bytes{32 * (2 * 12 + 2 * 20 + 4 * 16)});
  CHECK(vision_peak(kSmall, 8, 2) == Bytes{32 * (2 * 12 + (2 * 20 + 4 * 16) / 2)});
  VisionEncoder wide = kSmall;
  wide.mlp_width = 60;
  CHECK(vision_peak(wide, 8, 1) == Bytes{32 * (2 * 12 + 2 * 120)});
  CHECK(vision_outputs(kSmall, 8) == Bytes{2 * 8 * 10});
}

TEST_CASE(
    "a configuration's vision encoder: known families are read, others noted, gaps are errors") {
  const Llm& llm = find_llm("qwen3-vl-8b");
  REQUIRE(llm.vision);
  CHECK(llm.vision->extra_mergers == 3);
  CHECK(llm.vision->image_tokens == 16384);
  CHECK(llm.vision->patch_values == 3 * 2 * 16 * 16);
  CHECK_FALSE(find_llm("llama-3.1-8b").vision);
  CHECK_FALSE(find_llm("mistral-small-3.2-24b").vision);  // another encoder

  json config{{"architectures", {"Qwen3VLForConditionalGeneration"}},
              {"model_type", "qwen3_vl"},
              {"vision_config",
               {{"depth", 2},
                {"hidden_size", 8},
                {"intermediate_size", 16},
                {"num_position_embeddings", 4},
                {"out_hidden_size", 64},
                {"patch_size", 14},
                {"spatial_merge_size", 2},
                {"temporal_patch_size", 2}}},
              {"text_config",
               {{"model_type", "qwen3_vl_text"},
                {"hidden_size", 64},
                {"intermediate_size", 128},
                {"num_hidden_layers", 2},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"head_dim", 16},
                {"vocab_size", 100},
                {"max_position_embeddings", 1000}}}};
  const auto read = [&] { return read_hf_config(Field::wrap(config, "config.json"), "own"); };
  REQUIRE(read().vision);
  CHECK(read().vision->image_tokens == 21399);  // 4,096 x 4,096 pixels in squares of 28
  config["vision_config"].erase("depth");
  CHECK(error_text(config) == "config.json: /vision_config/depth: missing");
  config["vision_config"]["depth"] = -1;
  CHECK(error_text(config).starts_with("config.json: /vision_config/depth: expected"));
  config["architectures"] = {"Qwen2VLForConditionalGeneration"};
  CHECK_FALSE(read().vision);
  // Every pipeline stage builds the vision encoder, like vLLM's model class; a draft head does not.
  CHECK(stage_llm(llm, {.first = 0, .last = 18, .embedding = true, .head = false}).vision);
  CHECK(stage_llm(llm, {.first = 18, .last = 36, .embedding = false, .head = true}).vision);
  CHECK_FALSE(draft_head(find_llm("qwen3.5-27b"), DraftHead::kMtp).vision);
}

}  // namespace kvsim
