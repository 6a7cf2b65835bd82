// Conversion: without options nothing changes, with options only the requested parts.

#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/convert.hpp"
#include "traces/synthetic/generate.hpp"
#include "traces/trace.hpp"
#include "traces/trace_writer.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// Each test case has a separate file: ctest runs them in parallel.
std::filesystem::path rich_trace(const std::string& name) {
  GenerateOptions o;
  o.layers = 3;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 16;
  o.prompt_tokens = 40;
  o.tokens = 81;
  o.with_repeat = o.with_hidden = o.with_output_projection = true;
  o.with_scores = o.with_decisions = true;
  const auto path = scratch(name);
  generate_trace(o, path);
  return path;
}

Trace converted(const std::filesystem::path& in, const ConvertOptions& options,
                const std::string& name) {
  const auto out = scratch(name);
  convert_trace(in, out, options);
  CHECK_FALSE(std::filesystem::exists(out.string() + ".unchecked"));
  return Trace::open(out);
}

/// The first n tokens of every head of [heads, tokens, d].
std::vector<float> first_tokens(const std::vector<float>& rows, std::int64_t heads,
                                std::int64_t tokens, std::int64_t d, std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto from = rows.begin() + h * tokens * d;
    out.insert(out.end(), from, from + n * d);
  }
  return out;
}

}  // namespace

TEST_CASE("convert: a plain copy has the same tensors and metadata") {
  const auto in = rich_trace("convert_copy_in.safetensors");
  const Trace before = Trace::open(in);
  const Trace after = converted(in, {}, "convert_copy.safetensors");
  CHECK(after.info().metadata == before.info().metadata);
  CHECK(after.info().scores == before.info().scores);
  CHECK(after.info().decisions == before.info().decisions);
  CHECK(after.read_tokens() == before.read_tokens());
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    CHECK(after.read_layer(layer).q == before.read_layer(layer).q);
    CHECK(after.read_layer(layer).k == before.read_layer(layer).k);
    CHECK(after.read_layer(layer).v == before.read_layer(layer).v);
    CHECK(after.read_hidden(layer) == before.read_hidden(layer));
    CHECK(after.read_output_projection(layer) == before.read_output_projection(layer));
    CHECK(after.read_per_head(layer, "score.kvzap") == before.read_per_head(layer, "score.kvzap"));
  }
  // A copy of the copy has the same bytes.
  (void)converted(scratch("convert_copy.safetensors"), {}, "convert_again.safetensors");
  CHECK(bytes_of_file(scratch("convert_copy.safetensors")) ==
        bytes_of_file(scratch("convert_again.safetensors")));
}

TEST_CASE("convert: fp16 to fp32 and back loses nothing while bf16 rounds") {
  const auto in = sample_trace();
  ConvertOptions o;
  o.dtype = Dtype::kFp32;
  const Trace wide = converted(in, o, "convert_fp32.safetensors");
  CHECK(wide.info().dtype == Dtype::kFp32);
  CHECK(wide.info().metadata.at("dtype") == "float32");
  o.dtype = Dtype::kFp16;
  const Trace back = converted(scratch("convert_fp32.safetensors"), o, "convert_fp16.safetensors");
  const Trace before = Trace::open(in);
  CHECK(back.read_layer(5).k == before.read_layer(5).k);
  CHECK(wide.read_layer(5).k == before.read_layer(5).k);
  CHECK(back.info().metadata.at("converted") == "as float32; then as float16");
  o.dtype = Dtype::kBf16;
  const auto rounded = converted(in, o, "convert_bf16.safetensors").read_layer(0).v;
  const auto exact = before.read_layer(0).v;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    REQUIRE(std::abs(rounded[i] - exact[i]) <= std::abs(exact[i]) / 256);  // 8 bits of mantissa
  }
}

TEST_CASE("convert: a cut keeps the first tokens, and prompt and repeat while they fit") {
  const auto in = rich_trace("convert_cut_in.safetensors");
  const Trace before = Trace::open(in);
  ConvertOptions o;
  std::vector<std::string> notes;
  o.note = [&](const std::string& text) { notes.push_back(text); };
  o.tokens = 60;
  const Trace cut = converted(in, o, "convert_cut.safetensors");
  CHECK(cut.info().tokens == 60);
  CHECK(cut.info().prompt_tokens == 40);
  CHECK_FALSE(cut.info().repeat_start.has_value());  // 42 … 80 is no longer complete
  CHECK(notes == std::vector<std::string>{
                     "the repeat of the context ends at token 81 and is not whole in 60 tokens: "
                     "repeat_start and repeat_len are left out"});
  CHECK(cut.read_layer(1).q == first_tokens(before.read_layer(1).q, 4, 81, 16, 60));
  CHECK(cut.read_layer(1).v == first_tokens(before.read_layer(1).v, 2, 81, 16, 60));
  CHECK(cut.read_output_projection(1) == before.read_output_projection(1));
  o.tokens = 30;
  CHECK(converted(in, o, "convert_cut.safetensors").info().prompt_tokens == 29);
  REQUIRE(notes.size() == 3);
  CHECK(notes[1] ==
        "the prompt of 40 tokens is cut to 29, with 1 token left to decode; --metadata "
        "prompt_len=N sets another length");
  o.tokens = 1;
  CHECK(converted(in, o, "convert_cut.safetensors").info().prompt_tokens == 1);
  CHECK(notes[3].find("cut to 1, with no token left to decode") != std::string::npos);
  notes.clear();
  o.metadata["prompt_len"] = "20";
  o.tokens = 30;
  CHECK(converted(in, o, "convert_cut.safetensors").info().prompt_tokens == 20);
  CHECK(notes.size() == 1);  // the prompt is as requested
  o.metadata.clear();
  notes.clear();
  o.tokens = 81;
  CHECK(converted(in, o, "convert_cut.safetensors").info().repeat_start == 42);
  CHECK(notes.empty());
}

TEST_CASE("convert: layers are chosen in order, optional tensors dropped") {
  const auto in = rich_trace("convert_layers_in.safetensors");
  const Trace before = Trace::open(in);
  ConvertOptions o;
  o.layers = {2, 0};
  o.keep_hidden = o.keep_output_projection = o.keep_scores = o.keep_decisions = false;
  const Trace after = converted(in, o, "convert_layers.safetensors");
  CHECK(after.info().n_layers == 2);
  CHECK(after.read_layer(0).k == before.read_layer(2).k);
  CHECK(after.read_layer(1).k == before.read_layer(0).k);
  CHECK_FALSE(after.info().has_hidden);
  CHECK_FALSE(after.info().has_output_projection);
  CHECK(after.info().scores.empty());
  CHECK(after.info().decisions.empty());
}

constexpr std::int64_t kSixTokens = 6, kTwoHeads = 2, kFourChannels = 4;

/// A trace of one layer with `more` tensors next to q, k and v; elements are 1/16, 2/16, ….
void write_layer_with(const std::filesystem::path& file, const std::vector<TensorPlan>& more) {
  const std::vector<std::int64_t> rows{kSixTokens, kTwoHeads, kFourChannels};
  std::vector<TensorPlan> plans{{"layers.0.q", TensorType::kF32, rows},
                                {"layers.0.k", TensorType::kF32, rows},
                                {"layers.0.v", TensorType::kF32, rows}};
  plans.insert(plans.end(), more.begin(), more.end());
  SafetensorsWriter writer{file,
                           plans,
                           {{"format", "kv-attention-trace"},
                            {"version", "1"},
                            {"num_layers", "1"},
                            {"num_q_heads", "2"},
                            {"num_kv_heads", "2"},
                            {"head_dim", "4"},
                            {"num_tokens", "6"},
                            {"prompt_len", "3"},
                            {"dtype", "float32"},
                            {"model", "counted"},
                            {"softmax_scale", "0.5"}}};
  float value = 0;
  for (const TensorPlan& plan : plans) {
    std::int64_t n = 1;
    for (const std::int64_t size : plan.shape) n *= size;
    std::vector<float> numbers(static_cast<std::size_t>(n));
    for (float& x : numbers) x = value += 0.0625F;
    writer.write(std::span<const float>{numbers});
  }
  writer.finish([](const std::filesystem::path&) {});
}

TEST_CASE("convert: an indexer is kept as recorded, complete or not at all") {
  const auto in = scratch("convert_index_in.safetensors");
  constexpr std::int64_t kIndexHeads = 3, kIndexDim = 2;
  std::vector<TensorPlan> index{
      {"layers.0.index.q", TensorType::kF32, {kSixTokens, kIndexHeads, kIndexDim}},
      {"layers.0.index.k", TensorType::kF32, {kSixTokens, kIndexDim}},
      {"layers.0.index.w", TensorType::kF32, {kSixTokens, kIndexHeads}}};
  write_layer_with(in, index);
  const Trace before = Trace::open(in);
  ConvertOptions options;
  options.tokens = 5;
  options.dtype = Dtype::kFp16;
  const Trace after = converted(in, options, "convert_index.safetensors");
  CHECK(after.info().index_heads == kIndexHeads);
  CHECK(after.info().index_dim == kIndexDim);
  for (const auto& [part, columns] :
       {std::pair{"q", kIndexHeads * kIndexDim}, {"k", kIndexDim}, {"w", kIndexHeads}}) {
    std::vector<float> first = before.read_index(0, part);
    first.resize(static_cast<std::size_t>(5 * columns));
    CHECK(after.read_index(0, part) == first);
  }
  index.pop_back();
  write_layer_with(in, index);
  CHECK(complaint<InputError>([&] {
          convert_trace(in, scratch("convert_index_bad.safetensors"), {});
        }).find("layers.0.index.w: missing") != std::string::npos);
}

TEST_CASE("rows of chunks are read by head, converted with the trace, and must be complete") {
  const auto in = scratch("convert_reused_in.safetensors");
  const std::vector<std::int64_t> rows{kSixTokens, kTwoHeads, kFourChannels};
  write_layer_with(in, {{"layers.0.reused.k", TensorType::kF32, rows},
                        {"layers.0.reused.v", TensorType::kF32, rows}});
  const Trace before = Trace::open(in);
  CHECK(before.info().has_reused);
  const TraceRows both = before.read_reused(0, 0, 2), second = before.read_reused(0, 1, 1);
  REQUIRE(both.k.size() == 48);
  REQUIRE(second.v.size() == 24);
  // Tensors are consecutive: reused.k begins with element 3 x 48; a token has two heads of four.
  CHECK(both.k[0] == (3 * 48 + 1) / 16.0F);
  CHECK(both.k[4] == (3 * 48 + 8 + 1) / 16.0F);  // the next token of head 0
  CHECK(both.v[24] == (4 * 48 + 4 + 1) / 16.0F);
  CHECK(second.v == std::vector<float>(both.v.begin() + 24, both.v.end()));
  ConvertOptions options;
  options.tokens = 5;
  const Trace after = converted(in, options, "convert_reused.safetensors");
  CHECK(after.info().has_reused);
  CHECK(after.read_reused(0, 0, 1).k ==
        std::vector<float>(both.k.begin(), both.k.begin() + 5 * kFourChannels));
  write_layer_with(in, {});
  CHECK_FALSE(Trace::open(in).info().has_reused);
  CHECK_THROWS_AS((void)Trace::open(in).read_reused(0, 0, 1), InputError);
  // One tensor without the other, or a tensor of another shape.
  const auto refused = [&](const std::vector<TensorPlan>& more) {
    write_layer_with(in, more);
    return complaint<InputError>([&] { (void)Trace::open(in); });
  };
  CHECK(refused({{"layers.0.reused.k", TensorType::kF32, rows}}).find("layers.0.reused.v") !=
        std::string::npos);
  CHECK(refused({{"layers.0.reused.k", TensorType::kF32, {3, kTwoHeads, kFourChannels}},
                 {"layers.0.reused.v", TensorType::kF32, rows}})
            .find("layers.0.reused.k") != std::string::npos);
}

TEST_CASE("convert: a foreign file is imported by names and metadata") {
  const auto foreign = scratch("convert_foreign.safetensors");
  const std::vector<float> q{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // [3 tokens, 2 heads, 2]
  const std::vector<float> k{1, 0, 0, 1, 1, 1};                       // [3, 1, 2]
  {
    SafetensorsWriter writer{foreign,
                             {{"model.layers.0.query", TensorType::kF32, {3, 2, 2}},
                              {"model.layers.0.key", TensorType::kF32, {3, 1, 2}},
                              {"model.layers.0.value", TensorType::kF32, {3, 1, 2}}},
                             {{"producer", "elsewhere"}}};
    writer.write(std::span<const float>{q});
    writer.write(std::span<const float>{k});
    writer.write(std::span<const float>{k});
    writer.finish();
  }
  ConvertOptions o;
  o.names = {{"q", "model.layers.{i}.query"},
             {"k", "model.layers.{i}.key"},
             {"v", "model.layers.{i}.value"}};
  const auto out = scratch("convert_import.safetensors");
  std::filesystem::remove(out);
  const std::string said = complaint<InputError>([&] { convert_trace(foreign, out, o); });
  INFO(said);
  CHECK(said == out.string() + ": __metadata__.prompt_len: missing");
  CHECK_FALSE(std::filesystem::exists(out));
  o.metadata = {{"prompt_len", "2"}, {"softmax_scale", "0.5"}, {"model", "tiny"}};
  const Trace trace = converted(foreign, o, "convert_import.safetensors");
  CHECK(trace.info().tokens == 3);
  CHECK(trace.info().n_heads == 2);
  CHECK(trace.info().n_kv_heads == 1);
  CHECK(trace.info().prompt_tokens == 2);
  CHECK(trace.info().softmax_scale == 0.5);
  CHECK(trace.info().model == "tiny");
  CHECK(trace.info().metadata.at("producer") == "elsewhere");
  CHECK(trace.read_layer(0).q == std::vector<float>{1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12});
}

TEST_CASE("convert: numbers beyond fp16 are refused and not made infinite") {
  const auto in = scratch("convert_large.safetensors");
  {
    SafetensorsWriter writer{in,
                             {{"layers.0.q", TensorType::kF32, {1, 1, 2}},
                              {"layers.0.k", TensorType::kF32, {1, 1, 2}},
                              {"layers.0.v", TensorType::kF32, {1, 1, 2}}},
                             {{"prompt_len", "1"}}};
    const std::vector<float> row{1, 1e6F};
    for (int i = 0; i < 3; ++i) writer.write(std::span<const float>{row});
    writer.finish();
  }
  ConvertOptions o;
  o.dtype = Dtype::kFp16;
  const auto out = scratch("convert_large_out.safetensors");
  CHECK(complaint<InputError>([&] { convert_trace(in, out, o); }) ==
        in.string() +
            ": layers.0.q: element 1: expected a number within fp16's range, got 1000000");
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("convert: invalid options are refused") {
  const auto in = rich_trace("convert_refused_in.safetensors");
  struct Case {
    std::function<void(ConvertOptions&)> spoil;
    std::string begins;
  };
  const std::vector<Case> cases{
      {[](auto& o) { o.tokens = 0; }, "tokens: expected an integer in [1, 81], got 0"},
      {[](auto& o) { o.tokens = 82; }, "tokens: expected an integer in [1, 81], got 82"},
      {[](auto& o) { o.layers = {3}; }, "layers: expected of the file's layers (0,1,2), got 3"},
      {[](auto& o) { o.layers = {-1}; }, "layers: "},
      {[](auto& o) { o.dtype = Dtype::kFp8E4m3; }, "dtype: expected fp32, fp16 or bf16"},
      {[](auto& o) { o.names["hiden"] = "x.{i}"; },
       "names: unknown tensor \"hiden\"; did you mean"},
      {[](auto& o) { o.names["q"] = "query"; }, "names.q: expected a tensor name with {i}"},
      {[](auto& o) { o.names["v"] = "values.{i}"; }, in.string() + ": values.0: missing"},
      {[](auto& o) { o.metadata["num_layers"] = "9"; }, "metadata.num_layers: "},
      {[](auto& o) { o.metadata["prompt_len"] = "many"; },
       scratch("convert_refused.safetensors").string() + ": __metadata__.prompt_len: expected"},
  };
  for (const Case& c : cases) {
    ConvertOptions o;
    c.spoil(o);
    const auto out = scratch("convert_refused.safetensors");
    const std::string said = complaint<InputError>([&] { convert_trace(in, out, o); });
    INFO(c.begins, " / ", said);
    CHECK(said.starts_with(c.begins));
    CHECK_FALSE(std::filesystem::exists(out));
    CHECK_FALSE(std::filesystem::exists(out.string() + ".unchecked"));
  }
}

TEST_CASE("convert: a gap in the layers is reported and does not end the trace") {
  const auto whole = rich_trace("convert_gap_in.safetensors");
  const std::vector<char> original = bytes_of_file(whole);
  // Tensors of layer 1 under names that belong to no layer.
  const auto with_gap = [&](const std::string& name, const std::vector<std::string>& words) {
    std::string bytes{original.begin(), original.end()};
    for (const std::string& word : words) {
      const std::string tensor = "\"layers.1." + word + "\"";
      const std::size_t at = bytes.find(tensor);
      REQUIRE(at != std::string::npos);
      bytes.replace(at, tensor.size(), "\"moved!.1." + word + "\"");
    }
    const auto path = scratch(name);
    std::ofstream{path, std::ios::binary} << bytes;
    return path;
  };
  const auto out = scratch("convert_gap.safetensors");
  const auto said = [&](const std::filesystem::path& in, const ConvertOptions& options) {
    return complaint<InputError>([&] { convert_trace(in, out, options); });
  };
  const auto gap = with_gap("convert_gap_all.safetensors", {"q", "k", "v"});
  CHECK(said(gap, {}) == gap.string() +
                             ": layers.1.q: missing, though the file has layer 2; layers=0,2 "
                             "converts the existing layers");
  const auto part = with_gap("convert_gap_part.safetensors", {"q"});
  CHECK(said(part, {}) == part.string() + ": layers.1.q: missing");
  CHECK_FALSE(std::filesystem::exists(out));
  ConvertOptions chosen;
  chosen.layers = {0, 2};
  CHECK(converted(gap, chosen, "convert_gap_chosen.safetensors").info().n_layers == 2);
  chosen.layers = {1};
  CHECK(said(gap, chosen) == "layers: expected of the file's layers (0,2), got 1");
  // A file that does not begin at layer 0.
  chosen.layers = {2};
  CHECK(converted(gap, chosen, "convert_gap_last.safetensors").info().n_layers == 1);
}

TEST_CASE("convert: too many layers are refused at once, many are converted in linear time") {
  const auto tiny = [](const std::string& name, int layers) {
    std::vector<TensorPlan> tensors;
    for (int i = 0; i < layers; ++i) {
      for (const char* part : {"q", "k", "v"}) {
        tensors.push_back({fmt::format("layers.{}.{}", i, part), TensorType::kF32, {2, 1, 1}});
      }
    }
    const auto path = scratch(name);
    SafetensorsWriter writer{path, tensors, {{"prompt_len", "1"}}};
    for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(std::vector<float>{1, 2});
    writer.finish();
    return path;
  };
  const auto out = scratch("convert_many.safetensors");
  std::filesystem::remove(out);  // from an earlier run
  using Clock = std::chrono::steady_clock;
  const auto limit = std::chrono::seconds{test::kSanitized ? 60 : 10};
  const auto too_many = tiny("convert_too_many_in.safetensors", 20'000);
  auto begin = Clock::now();
  CHECK(complaint<InputError>([&] { convert_trace(too_many, out, {}); }) ==
        too_many.string() + ": expected at most 10000 layers, got 20000");
  CHECK(Clock::now() - begin < limit);
  CHECK_FALSE(std::filesystem::exists(out));
  const auto many = tiny("convert_many_in.safetensors", 10'000);
  begin = Clock::now();
  CHECK(converted(many, {}, "convert_many.safetensors").info().n_layers == 10'000);
  CHECK(Clock::now() - begin < limit);
}
