#include <algorithm>
#include <string>

#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

std::int64_t visited(const Llm& llm) {
  std::int64_t values = 0;
  const auto add = [&](const MatrixPlace&, std::int64_t in, std::int64_t out, std::int64_t count) {
    values += in * out * count;
  };
  visit_outer_matrices(llm, add);
  for (const LayerSpec& layer : llm.layers) visit_layer_matrices(llm, layer, add);
  return values + std::int64_t{llm.learned_positions} * llm.d_model + llm.extra_parameters;
}

TEST_CASE("the matrices visited are the model's parameters") {
  for (const Llm& llm : builtin_llms()) {
    INFO(llm.name);
    CHECK(visited(llm) == parameters(llm));
  }
}

TEST_CASE("without a format every weight is in the base dtype, as published") {
  for (const char* name : {"llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite", "opt-6.7b"}) {
    const Llm& llm = find_llm(name);
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kInt8, llm.published_dtype}) {
      CHECK(loaded_weight_bytes(llm, WeightStore{dtype, nullptr}) ==
            loaded_weight_bytes(llm, dtype));
    }
  }
  // The published gpt-oss has experts in MXFP4 and the rest in bf16.
  const Llm& oss = find_llm("gpt-oss-20b");
  CHECK(loaded_weight_bytes(oss, WeightStore{Dtype::kBf16, &find_weight_format("mxfp4")}) ==
        published_weight_bytes(oss));
}

TEST_CASE("a packed matrix stores its values, scales and zeros") {
  const Llm& llm = find_llm("llama-2-7b");
  const auto bytes = [&](const char* format, WeightPart part) {
    return matrix_bytes(llm, {Dtype::kFp16, &find_weight_format(format)}, part, 4096, 11008)
        .count();
  };
  const std::int64_t n = 4096 * 11008;
  // AWQ: qweight n/2 B, scales 2 B and zeros half a byte per 128 values.
  CHECK(bytes("awq-int4", WeightPart::kLinear) == n / 2 + n / 128 * 2 + n / 256);
  CHECK(bytes("gptq-int4", WeightPart::kLinear) == n / 2 + n / 128 * 2 + n / 256 + 4096 * 4);
  CHECK(bytes("int8-channel", WeightPart::kLinear) == n + 11008 * 2);
  CHECK(bytes("fp8-tensor", WeightPart::kLinear) == n + 8);
  CHECK(bytes("nf4", WeightPart::kLinear) == n / 2 + n / 64 * 4);
  CHECK(bytes("flexgen-int4", WeightPart::kEmbedding) == n / 2 + n / 64 * 4);
  CHECK(bytes("mxfp4", WeightPart::kExperts) == n / 2 + n / 32);
  // Excluded parts stay in 16 bit.
  CHECK(bytes("awq-int4", WeightPart::kEmbedding) == 2 * n);
  CHECK(bytes("awq-int4", WeightPart::kHead) == 2 * n);
  CHECK(bytes("mxfp4", WeightPart::kLinear) == 2 * n);
  CHECK(bytes("int8-channel", WeightPart::kHead) == n + 11008 * 2);
  for (const WeightFormat& format : builtin_weight_formats()) {
    INFO(format.name);
    CHECK_FALSE(format.source.empty());
    CHECK(matrix_bytes(llm, {Dtype::kFp16, &format}, WeightPart::kPlain, 7, 9).count() == 126);
  }
}

TEST_CASE("narrower formats take less memory and tied heads none") {
  const Llm& llm = find_llm("qwen2.5-7b");
  const auto total = [&](const Llm& model, const char* format) {
    return loaded_weight_bytes(model, {Dtype::kBf16, &find_weight_format(format)});
  };
  CHECK(total(llm, "awq-int4") < total(llm, "gptq-int4"));
  CHECK(total(llm, "gptq-int4") < total(llm, "gptq-int8"));
  CHECK(total(llm, "gptq-int8") < weight_bytes(llm, Dtype::kBf16));
  CHECK(total(llm, "nf4-double") < total(llm, "nf4"));
  Llm tied = llm;
  tied.tied_embeddings = true;
  CHECK(total(llm, "int8-channel") - total(tied, "int8-channel") ==
        matrix_bytes(llm, {Dtype::kBf16, &find_weight_format("int8-channel")}, WeightPart::kHead,
                     llm.d_model, llm.vocab_size));
  CHECK_THROWS_AS((void)find_weight_format("awq"), InputError);
}

TEST_CASE("weight-only formats compute in 16 bit and the others in their own format") {
  const Llm& llm = find_llm("llama-2-7b");
  const auto computes = [&](const char* format) {
    return product_dtype(llm, {Dtype::kFp16, &find_weight_format(format)}, WeightPart::kLinear);
  };
  CHECK(computes("awq-int4") == Dtype::kFp16);
  CHECK(computes("fp8-tensor") == Dtype::kFp8E4m3);
  CHECK(computes("w8a8-int8") == Dtype::kInt8);
}

TEST_CASE("shards of tensor parallelism add up to the model") {
  for (const char* name : {"llama-3.1-8b", "llama-2-70b", "mixtral-8x7b", "deepseek-v2"}) {
    const Llm& llm = find_llm(name);
    for (const std::int32_t ranks : {1, 2, 4, 8}) {
      INFO(name, " over ", ranks);
      const Llm shard = tensor_shard(llm, ranks);
      // Every part of the model is on at least one rank; the excess is due to copies.
      CHECK(ranks * parameters(shard) >= parameters(llm));
      CHECK(static_cast<double>(ranks) * static_cast<double>(parameters(shard)) <
            1.06 * static_cast<double>(parameters(llm)));
      const std::int64_t kv = kv_elements_per_token(shard.layers[0].attention);
      if (caches_latents(llm.layers[0])) {
        CHECK(kv == kv_elements_per_token(llm.layers[0].attention));
      } else {
        CHECK(ranks * kv == kv_elements_per_token(llm.layers[0].attention));
      }
    }
  }
  // Fewer KV heads than ranks: one copy per rank.
  const Llm& qwen = find_llm("qwen2.5-0.5b");
  REQUIRE(qwen.layers[0].attention.n_kv_heads == 2);
  CHECK_THROWS_AS((void)tensor_shard(qwen, 4), InputError);  // 14 query heads
  const Llm& three = find_llm("qwen2.5-3b");
  REQUIRE(three.layers[0].attention.n_kv_heads == 2);
  CHECK(tensor_shard(three, 4).layers[0].attention.n_kv_heads == 1);
}

}  // namespace
}  // namespace kvsim
