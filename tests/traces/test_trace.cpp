#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <unistd.h>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"
#include "traces/trace.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// A tiny trace in which single parts can be invalidated.
struct Draft {
  std::map<std::string, std::string> metadata{{"format", "kv-attention-trace"},
                                              {"version", "1"},
                                              {"model", "tiny"},
                                              {"num_layers", "1"},
                                              {"num_q_heads", "2"},
                                              {"num_kv_heads", "1"},
                                              {"head_dim", "2"},
                                              {"num_tokens", "3"},
                                              {"prompt_len", "2"},
                                              {"softmax_scale", "0.5"},
                                              {"rope_style", "half_split"},
                                              {"rope_theta", "10000"}};
  std::vector<TensorPlan> tensors{{"layers.0.q", TensorType::kF16, {3, 2, 2}},
                                  {"layers.0.k", TensorType::kF16, {3, 1, 2}},
                                  {"layers.0.v", TensorType::kF16, {3, 1, 2}}};
  float poison = 1.0F;  // the last value of the last floating tensor

  [[nodiscard]] fs::path write() const {
    const fs::path path = test::scratch_folder() / fmt::format("draft-{}.safetensors", ::getpid());
    SafetensorsWriter writer{path, tensors, metadata};
    float next = 0;
    for (const TensorPlan& tensor : tensors) {
      std::int64_t n = 1;
      for (const auto dimension : tensor.shape) n *= dimension;
      if (tensor.type == TensorType::kI32) {
        writer.write(std::vector<std::int32_t>(static_cast<std::size_t>(n), 5));
        continue;
      }
      std::vector<float> values;
      for (std::int64_t i = 0; i < n; ++i) values.push_back(next += 0.25F);
      if (&tensor == &tensors.back()) values.back() = poison;
      writer.write(values);
    }
    writer.finish();
    return path;
  }

  [[nodiscard]] std::string complaint() const {
    const fs::path path = write();
    try {
      const Trace trace = Trace::open(path);
      (void)trace.read_layer(0);
    } catch (const InputError& error) {
      const std::string text = error.what();
      CHECK(text.starts_with(path.string() + ": "));
      return text.substr(path.string().size() + 2);
    }
    return "none";
  }
};

Draft with(const std::string& key, const std::string& value) {
  Draft draft;
  draft.metadata[key] = value;
  return draft;
}
Draft without(const std::string& key) {
  Draft draft;
  draft.metadata.erase(key);
  return draft;
}

TEST_CASE("a trace is read head by head as recorded") {
  const Trace trace = Trace::open(Draft{}.write());
  const TraceInfo& info = trace.info();
  CHECK(info.n_heads == 2);
  CHECK(info.prompt_tokens == 2);
  CHECK(info.dtype == Dtype::kFp16);
  CHECK(info.softmax_scale == 0.5);
  const TraceLayer layer = trace.read_layer(0);
  // On disk q counts 0.25, 0.5, … over [token, head, d]; here head 1, token 2 is the last pair.
  CHECK(layer.q[0] == 0.25F);
  CHECK(layer.q[2] == 1.25F);  // head 0, token 1
  CHECK(layer.q[11] == 3.0F);  // head 1, token 2, second element
  CHECK(layer.k[0] == 3.25F);
  CHECK_THROWS_AS((void)trace.read_hidden(0), InputError);
  CHECK_THROWS_AS((void)trace.read_tokens(), InputError);
}

TEST_CASE("optional parts are detected, and their shapes checked") {
  Draft draft;
  draft.tensors.push_back({"layers.0.hidden", TensorType::kF16, {3, 4}});
  draft.tensors.push_back({"layers.0.wo", TensorType::kF32, {4, 4}});
  draft.tensors.push_back({"layers.0.score.kvzip", TensorType::kF32, {3, 1}});
  draft.tensors.push_back({"layers.0.decision.evict", TensorType::kF32, {3, 1}});
  draft.metadata["repeat_start"] = "1";
  draft.metadata["repeat_len"] = "2";
  const Trace trace = Trace::open(draft.write());
  CHECK(trace.info().d_model == 4);
  CHECK(trace.info().scores == std::vector<std::string>{"kvzip"});
  CHECK(trace.info().decisions == std::vector<std::string>{"evict"});
  CHECK(trace.info().repeat_tokens == 2);
  CHECK(trace.read_hidden(0).size() == 12);
  CHECK(trace.read_output_projection(0).size() == 16);
  CHECK(trace.read_per_head(0, "score.kvzip").size() == 3);
  CHECK_THROWS_AS((void)trace.read_per_head(0, "score.other"), InputError);
  draft.tensors[4].shape = {5, 4};
  CHECK(draft.complaint() == "layers.0.wo: expected shape [4, 4], got [5, 4]");
}

TEST_CASE("metadata outside its range is refused with place, expected and got") {
  CHECK(Draft{}.complaint() == "none");
  CHECK(with("format", "other").complaint() ==
        "__metadata__.format: expected \"kv-attention-trace\", got \"other\"");
  CHECK(with("version", "2").complaint() == "__metadata__.version: expected \"1\", got \"2\"");
  CHECK(without("num_layers").complaint() == "__metadata__.num_layers: missing");
  CHECK(with("num_layers", "0").complaint() ==
        "__metadata__.num_layers: expected an integer in [1, 10000], got \"0\"");
  CHECK(with("num_tokens", "3x").complaint().find("got \"3x\"") != std::string::npos);
  CHECK(with("num_tokens", "99999999999999999999").complaint().find("expected an integer") !=
        std::string::npos);
  CHECK(with("prompt_len", "4").complaint() ==
        "__metadata__.prompt_len: expected an integer in [1, 3], got \"4\"");
  CHECK(with("num_kv_heads", "3").complaint().find("expected an integer in [1, 2]") !=
        std::string::npos);
  CHECK(with("softmax_scale", "nan").complaint().find("a number above 0, at most") !=
        std::string::npos);
  CHECK(with("softmax_scale", "1e308").complaint() ==
        "__metadata__.softmax_scale: expected a number above 0, at most 1000, got \"1e308\"");
  CHECK(with("rope_style", "spiral").complaint().find("\"interleaved\" or \"half_split\"") !=
        std::string::npos);
  CHECK(with("rope_theta", "-1").complaint().find("a number above 0, at most") !=
        std::string::npos);
  CHECK(with("mask", "causal").complaint() == "none");
  CHECK(with("mask", "none").complaint() ==
        "__metadata__.mask: expected \"causal\": a replay supports only causal attention, got "
        "\"none\"");
  CHECK(with("repeat_start", "1").complaint() == "__metadata__.repeat_len: missing");
  Draft odd = with("num_q_heads", "3");
  odd.metadata["num_kv_heads"] = "2";
  CHECK(odd.complaint() ==
        "__metadata__.num_kv_heads: expected a divisor of num_q_heads, 3, got 2");
}

TEST_CASE("tensors that are missing or of another shape are named") {
  Draft missing;
  missing.tensors.pop_back();
  CHECK(missing.complaint() == "layers.0.v: missing (expected shape [3, 1, 2])");
  CHECK(with("num_layers", "2").complaint() == "layers.1.q: missing (expected shape [3, 2, 2])");
  Draft extra;  // layers 0 and 2 of a trace that states one
  for (const char* part : {"q", "k", "v"}) {
    extra.tensors.push_back({fmt::format("layers.2.{}", part),
                             TensorType::kF16,
                             {3, part == std::string{"q"} ? 2 : 1, 2}});
  }
  CHECK(extra.complaint() ==
        "layers.2.k: expected a layer below __metadata__.num_layers, 1, got layer 2");
  extra.metadata["num_layers"] = "3";
  CHECK(extra.complaint() == "layers.1.q: missing (expected shape [3, 2, 2])");
  // Other tensors belong to no layer.
  Draft other;
  for (const char* name :
       {"layers.q", "layers.1.notes", "layers.x.q", "layers.1x.q", "extra.1.q"}) {
    other.tensors.push_back({name, TensorType::kF32, {2}});
  }
  CHECK(other.complaint() == "none");
  CHECK(with("head_dim", "4").complaint() == "layers.0.q: expected shape [3, 2, 4], got [3, 2, 2]");
  Draft integer;
  integer.tensors[2].type = TensorType::kI32;
  CHECK(integer.complaint() == "layers.0.v: expected F16, BF16, F32 or F64, got I32");
  Draft mixed;
  mixed.tensors[2].type = TensorType::kF32;
  CHECK(mixed.complaint() == "layers.0.v: expected F16, as layers.0.k, got F32");
}

TEST_CASE("non-finite numbers are named by element") {
  Draft draft;
  draft.poison = std::numeric_limits<float>::quiet_NaN();
  CHECK(draft.complaint() == "layers.0.v[2, 0, 1]: expected a finite number, got NaN");
  draft.poison = std::numeric_limits<float>::infinity();
  CHECK(draft.complaint() == "layers.0.v[2, 0, 1]: expected a finite number, got infinity");
  // Finite in fp32, but its products are not.
  draft.tensors[2].type = draft.tensors[1].type = TensorType::kF32;
  draft.poison = 1e20F;
  CHECK(draft.complaint() ==
        "layers.0.v[2, 0, 1]: expected a magnitude of at most 1e+06, got 1e+20");
}

TEST_CASE("a log score may be the logarithm of zero but not NaN") {
  Draft draft;
  draft.tensors.push_back({"layers.0.score.kvzap", TensorType::kF32, {3, 1}});
  draft.poison = -std::numeric_limits<float>::infinity();
  CHECK(std::isinf(Trace::open(draft.write()).read_per_head(0, "score.kvzap")[2]));
  draft.poison = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH_AS((void)Trace::open(draft.write()).read_per_head(0, "score.kvzap"),
                       doctest::Contains("score.kvzap[2, 0]: expected a finite number, got NaN"),
                       InputError);
}

TEST_CASE("real traces open and have the documented shapes") {
  const auto data = test::data_dir();
  if (!data) return;
  struct Row {
    const char* file;
    std::int64_t tokens, prompt;
    std::int32_t layers, heads, kv_heads, dim;
    Dtype dtype;
  };
  for (const Row& row : {Row{"stories260k-tim-512", 512, 98, 5, 8, 4, 8, Dtype::kFp32},
                         Row{"stories260k-garden-512", 512, 108, 5, 8, 4, 8, Dtype::kFp32},
                         Row{"books-alice-1024", 1024, 768, 6, 6, 2, 32, Dtype::kFp16},
                         Row{"books-pride-1024", 1024, 512, 6, 6, 2, 32, Dtype::kFp16},
                         Row{"books-treasure-512", 512, 384, 6, 6, 2, 32, Dtype::kFp16},
                         Row{"books-alice-repeat-960", 960, 480, 6, 6, 2, 32, Dtype::kFp16}}) {
    INFO(row.file);
    const Trace trace = Trace::open(*data / "attention" / (std::string{row.file} + ".safetensors"));
    const TraceInfo& info = trace.info();
    CHECK(info.tokens == row.tokens);
    CHECK(info.prompt_tokens == row.prompt);
    CHECK(info.n_layers == row.layers);
    CHECK(info.n_heads == row.heads);
    CHECK(info.n_kv_heads == row.kv_heads);
    CHECK(info.head_dim == row.dim);
    CHECK(info.dtype == row.dtype);
    CHECK(trace.read_layer(row.layers - 1).q.size() ==
          static_cast<std::size_t>(row.tokens * row.heads * row.dim));
  }
}

}  // namespace
}  // namespace kvsim
