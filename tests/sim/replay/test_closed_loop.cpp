// A decoder with a method's cache in the loop: the forward pass compared with plain sums, laws of
// the loop, and broken checkpoints and prompts.

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/methods/composed.hpp"
#include "models/units/error.hpp"
#include "sim/decoder/closed_loop.hpp"
#include "sim/decoder/decoder.hpp"
#include "sim/decoder/prompt_in_part.hpp"
#include "sim/decoder/prompts.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/random_model.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::fresh;
using test::kDim;
using test::kHeads;
using test::kKvHeads;
using test::kLayers;
using test::kVocab;
using test::kWidth;
using test::random_model;

std::vector<LoopPrompt> random_prompts(std::size_t count, std::size_t length, std::size_t answer) {
  std::mt19937 random{7};
  std::vector<LoopPrompt> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i].task = i % 2 == 0 ? "even" : "odd";
    for (std::size_t t = 0; t < length + 3 * i; ++t) {
      out[i].tokens.push_back(static_cast<std::int32_t>(random() % kVocab));
    }
    for (std::size_t t = 0; t < answer; ++t) {
      out[i].answer.push_back(static_cast<std::int32_t>(random() % kVocab));
    }
    out[i].question_start = static_cast<std::int64_t>(length) - 10;
  }
  return out;
}

using Row = std::vector<double>;

Row product(const Matrix& m, const Row& x) {
  Row y(static_cast<std::size_t>(m.rows));
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      y[i] += static_cast<double>(m.data[i * x.size() + j]) * x[j];
    }
  }
  return y;
}

/// Matrix times vector, plus a bias if there is one.
Row product(const Matrix& m, const Row& x, const std::vector<float>& bias) {
  Row y = product(m, x);
  for (std::size_t i = 0; i < bias.size(); ++i) y[i] += static_cast<double>(bias[i]);
  return y;
}

Row norm(const Row& x, const std::vector<float>& weight) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6) *
           static_cast<double>(weight[i]);
  }
  return y;
}

/// Logits after each token, in fp64, one token and one head at a time.
std::vector<Row> reference_logits(const Checkpoint& c, const std::vector<std::int32_t>& tokens) {
  std::vector<Row> x;
  for (const std::int32_t id : tokens) {
    const auto* row = c.embedding.data.data() + id * kWidth;
    x.emplace_back(row, row + kWidth);
  }
  const auto rotated = [&](const Row& all, std::int64_t head, const std::vector<float>& weight,
                           std::size_t t) {
    Row row{all.begin() + head * kDim, all.begin() + (head + 1) * kDim};
    if (!weight.empty()) row = norm(row, weight);
    Row out(kDim);
    for (std::size_t j = 0; j < kDim / 2; ++j) {
      const double angle =
          static_cast<double>(t) * std::pow(1000.0, -2.0 * static_cast<double>(j) / kDim);
      out[j] = row[j] * std::cos(angle) - row[j + kDim / 2] * std::sin(angle);
      out[j + kDim / 2] = row[j + kDim / 2] * std::cos(angle) + row[j] * std::sin(angle);
    }
    return out;
  };
  for (const DecoderLayer& w : c.layers) {
    std::vector<std::vector<Row>> q(tokens.size()), k(tokens.size()), v(tokens.size());
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const Row in = norm(x[t], w.input_norm);
      const Row queries = product(w.q, in, w.q_bias);
      const Row keys = product(w.k, in, w.k_bias);
      const Row values = product(w.v, in, w.v_bias);
      for (int h = 0; h < kHeads; ++h) q[t].push_back(rotated(queries, h, w.q_norm, t));
      for (int h = 0; h < kKvHeads; ++h) {
        k[t].push_back(rotated(keys, h, w.k_norm, t));
        v[t].emplace_back(values.begin() + h * kDim, values.begin() + (h + 1) * kDim);
      }
    }
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Row attended;
      for (std::size_t h = 0; h < kHeads; ++h) {
        const std::size_t kv = h / (kHeads / kKvHeads);
        Row out(kDim);
        double sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          double logit = 0;
          for (std::size_t j = 0; j < kDim; ++j) logit += q[t][h][j] * k[s][kv][j];
          const double weight = std::exp(logit / std::sqrt(double{kDim}));
          sum += weight;
          for (std::size_t j = 0; j < kDim; ++j) out[j] += weight * v[s][kv][j];
        }
        for (const double o : out) attended.push_back(o / sum);
      }
      const Row block = product(w.o, attended, w.o_bias);
      for (std::size_t j = 0; j < kWidth; ++j) x[t][j] += block[j];
      const Row in = norm(x[t], w.output_norm);
      Row gate = product(w.gate, in, w.gate_bias);
      const Row up = product(w.up, in, w.up_bias);
      for (std::size_t j = 0; j < gate.size(); ++j) gate[j] *= up[j] / (1 + std::exp(-gate[j]));
      const Row mlp = product(w.down, gate, w.down_bias);
      for (std::size_t j = 0; j < kWidth; ++j) x[t][j] += mlp[j];
    }
  }
  std::vector<Row> logits;
  logits.reserve(x.size());
  const Matrix& head = c.head.data.empty() ? c.embedding : c.head;
  for (const Row& row : x) logits.push_back(product(head, norm(row, c.final_norm)));
  return logits;
}

/// Checks the logits of the decoder and of a loop with the full cache.
void check_logits(const Checkpoint& model) {
  const std::vector<LoopPrompt> prompts = random_prompts(1, 40, 5);
  std::vector<std::int32_t> tokens = prompts[0].tokens;
  tokens.insert(tokens.end(), prompts[0].answer.begin(), prompts[0].answer.end() - 1);
  const std::vector<Row> want = reference_logits(model, tokens);

  const Decoder decoder{model};
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::vector<float> x = decoder.embed(tokens);
  for (std::int32_t l = 0; l < kLayers; ++l) {
    TraceLayer rows;
    rows.q.resize(static_cast<std::size_t>(n * kHeads * kDim));
    rows.k.resize(static_cast<std::size_t>(n * kKvHeads * kDim));
    rows.v.resize(rows.k.size());
    decoder.project(l, decoder.normed(l, x), 0, n, rows);
    decoder.finish(l, decoder.attend(rows, 0, n, n), x);
  }
  const std::vector<float> got = decoder.logits(x);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    for (std::size_t v = 0; v < kVocab; ++v) {
      CHECK(static_cast<double>(got[t * kVocab + v]) == doctest::Approx(want[t][v]).epsilon(1e-4));
    }
  }

  double loss = 0;
  for (std::size_t i = 0; i < prompts[0].answer.size(); ++i) {
    const Row& row = want[prompts[0].tokens.size() - 1 + i];
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit);
    loss += std::log(sum) - row[static_cast<std::size_t>(prompts[0].answer[i])];
  }
  const LoopResult result = run_closed_loop(model, prompts, {{"full", {}, {}}}, {});
  const LoopMethod& full = result.methods.at(0);
  CHECK(full.all.perplexity == doctest::Approx(std::exp(loss / 5)).epsilon(1e-5));
  CHECK(full.all.kl_mean < 1e-9);
  CHECK(full.all.token_agreement == 1);
  CHECK(full.rel_error_mean < 1e-5);
  CHECK(full.budget_reached == 1);
}

TEST_CASE("the decoder's logits equal those of plain sums, also in a loop with the full cache") {
  const std::vector<test::RandomModel> models{
      {},
      {.type = "llama", .keys = R"("attention_bias": true, "mlp_bias": true)", .head_norms = false},
      {.type = "qwen2", .keys = R"("tie_word_embeddings": true)", .head_norms = false},
      {.type = "mistral", .keys = R"("head_dim": 8)", .head_norms = false}};
  for (const test::RandomModel& of : models) {
    CAPTURE(of.type);
    check_logits(read_checkpoint(random_model("plain-sums", of), Bytes{1 << 30}));
  }
}

TEST_CASE("methods that keep everything and threads change nothing, and smaller budgets drift") {
  const Checkpoint model = read_checkpoint(random_model("laws"), Bytes{1 << 30});
  const std::vector<LoopPrompt> prompts = random_prompts(4, 120, 4);
  const auto with = [](const char* name, double fraction) {
    return MethodSpec{name, {}, Budget{.fraction = fraction, .entries = 0}};
  };
  for (const char* name : {"snapkv", "h2o", "knorm", "streaming-llm", "zeromerge"}) {
    CAPTURE(name);
    const MethodSpec everything{name, {}, Budget{.fraction = 0, .entries = 200}};
    const LoopResult all =
        run_closed_loop(model, prompts, {everything, with(name, 0.5), with(name, 0.1)}, {});
    CHECK(all.methods[0].all.kl_mean < 1e-7);
    CHECK(all.methods[0].all.token_agreement == 1);
    CHECK(all.methods[1].all.kl_mean < all.methods[2].all.kl_mean);
    CHECK(all.methods[1].budget_reached > all.methods[2].budget_reached);
    CHECK(all.methods[2].all.kl_mean > 0);
  }
  const std::vector<MethodSpec> specs{with("h2o", 0.2), {"minicache", {}, {}}, {"kivi-2", {}, {}}};
  const LoopResult one = run_closed_loop(model, prompts, specs, {.threads = 1});
  const LoopResult two = run_closed_loop(model, prompts, specs, {.threads = 2});
  for (std::size_t m = 0; m < specs.size(); ++m) {
    CHECK(one.methods[m].all.kl_mean == two.methods[m].all.kl_mean);
    CHECK(one.methods[m].answer_error_mean == two.methods[m].answer_error_mean);
    REQUIRE(one.methods[m].tasks.size() == 2);
    CHECK(one.methods[m].tasks[0].prompts + one.methods[m].tasks[1].prompts == 4);
  }
}

TEST_CASE("the shipped model answers from distant tokens, and loses more with weaker methods") {
  const fs::path sources{KVSIM_SOURCE_DIR};
  const fs::path file = fresh("shipped-model") / "tasks.jsonl";
  const std::string draw =
      fmt::format("python3 '{}' --length 768 --per-task 6 --task needle --task recall > '{}'",
                  (sources / "traces/train/tasks.py").string(), file.string());
  REQUIRE(std::system(draw.c_str()) == 0);
  const Checkpoint model = read_checkpoint(sources / "traces/samples/retrieval-1m", Bytes{1 << 30});
  const auto prompts = read_prompts(file, 256, 2048);
  REQUIRE(prompts.size() == 12);
  const auto with = [](const char* name) {
    return MethodSpec{name, {}, Budget{.fraction = 0.25, .entries = 0}};
  };
  const LoopResult result = run_closed_loop(
      model, prompts, {{"full", {}, {}}, with("snapkv"), with("streaming-llm"), with("knorm")}, {});
  const auto accuracy = [&](std::size_t m) { return result.methods[m].all.accuracy; };
  CHECK(accuracy(0) >= 0.9);
  CHECK(accuracy(1) > accuracy(2) + 0.3);
  CHECK(accuracy(1) > accuracy(3) + 0.3);
}

TEST_CASE("compression before the question and after it keeps different tokens") {
  const Checkpoint model = read_checkpoint(random_model("split"), Bytes{1 << 30});
  const std::vector<LoopPrompt> prompts = random_prompts(2, 100, 3);
  const std::vector<MethodSpec> specs{{"snapkv", {}, Budget{.fraction = 0.5, .entries = 0}}};
  const LoopResult aware = run_closed_loop(model, prompts, specs, {});
  const LoopResult agnostic =
      run_closed_loop(model, prompts, specs, {.split = TraceSplit::kQuestionAgnostic});
  CHECK(aware.methods[0].all.kl_mean != agnostic.methods[0].all.kl_mean);
  std::vector<LoopPrompt> unmarked = prompts;
  unmarked[1].question_start.reset();
  CHECK_THROWS_WITH_AS(
      (void)run_closed_loop(model, unmarked, specs, {.split = TraceSplit::kQuestionAgnostic}),
      "prompt 2: expected question_start for --split question-agnostic, got none", InputError);
}

std::vector<TraceRows> blended(const Decoder& decoder, const std::vector<std::int32_t>& tokens,
                               const std::vector<std::int64_t>& starts, std::int64_t reused,
                               double share) {
  const auto method =
      make_method({"cacheblend", {{"recompute_ratio", share}}, {}}, 64, {.n_layers = kLayers});
  return rows_in_part(decoder, {.tokens = tokens, .starts = starts, .reused = reused},
                      *as_composed(*method).parts().prefill);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double max = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    max = std::max(max, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return max;
}

TEST_CASE("blended rows: of separate chunks, of the whole prompt, and of tokens in no chunk") {
  const Checkpoint model = read_checkpoint(random_model("blended"), Bytes{1 << 30});
  const Decoder decoder{model};
  const std::vector<std::int32_t> tokens = random_prompts(1, 60, 1)[0].tokens;
  const std::vector<std::int32_t> second(tokens.begin() + 20, tokens.begin() + 45);
  const auto whole = blended(decoder, tokens, {0}, 60, 0);  // one chunk: the prompt itself
  const auto reused = blended(decoder, tokens, {0, 20, 45}, 60, 0);
  const auto separate = blended(decoder, second, {0}, 25, 0);
  for (std::size_t l = 0; l < kLayers; ++l) {
    CAPTURE(l);
    // If every token is computed again, the rows equal those of the whole prompt.
    const auto all = blended(decoder, tokens, {0, 20, 45}, 60, 1);
    CHECK(largest_difference(all[l].k, whole[l].k) < 1e-5);
    CHECK(largest_difference(all[l].v, whole[l].v) < 1e-5);
    // If none is, each chunk has its separately computed rows from the check layer on, with keys
    // rotated to its positions. Before that layer, all tokens are computed.
    for (std::size_t h = 0; h < kKvHeads; ++h) {
      const auto rows = [&](const std::vector<float>& from, std::size_t first, std::size_t n,
                            std::size_t of) {
        const auto at = from.begin() + static_cast<std::ptrdiff_t>((h * of + first) * kDim);
        return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(n * kDim));
      };
      const auto first = rows(reused[l].v, 0, 20, 60), chunk = rows(reused[l].v, 20, 25, 60);
      CHECK(largest_difference(first, rows(whole[l].v, 0, 20, 60)) < 1e-5);
      CHECK(largest_difference(chunk, rows(separate[l].v, 0, 25, 25)) < 1e-5);
      CHECK((largest_difference(chunk, rows(whole[l].v, 20, 25, 60)) > 1e-3) == (l > 0));
    }
    CHECK((largest_difference(reused[l].k, whole[l].k) > 1e-3) == (l > 0));
  }
  // Tokens after the chunks are computed in every layer, over the existing rows.
  const auto question = blended(decoder, tokens, {0, 20}, 45, 0);
  const auto end = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + 45 * kDim, all.begin() + 60 * kDim);
  };
  CHECK(largest_difference(end(question[1].v), end(reused[1].v)) > 1e-3);
  CHECK(largest_difference(end(question[1].v), end(whole[1].v)) < 1e-5);
  CHECK(largest_difference(end(question[3].v), end(whole[3].v)) > 1e-4);
}

TEST_CASE("a loop over blended prompts loses less with more tokens computed") {
  const Checkpoint model = read_checkpoint(random_model("blended-loop"), Bytes{1 << 30});
  std::vector<LoopPrompt> prompts = random_prompts(3, 100, 3);
  for (LoopPrompt& prompt : prompts) prompt.chunks = {0, 30, 55};
  std::vector<MethodSpec> specs{{"full", {}, {}}};
  for (const double share : {1.0, 0.5, 0.15, 0.0}) {
    specs.push_back({"cacheblend", {{"recompute_ratio", share}}, {}});
  }
  for (const TraceSplit split : {TraceSplit::kRecorded, TraceSplit::kQuestionAgnostic}) {
    const LoopResult result = run_closed_loop(model, prompts, specs, {.split = split});
    REQUIRE(result.methods.size() == specs.size());
    CHECK(result.methods[1].all.kl_mean < 1e-7);
    CHECK(result.methods[1].rel_error_mean < 1e-4);
    CHECK(result.methods[2].rel_error_mean < result.methods[3].rel_error_mean);
    CHECK(result.methods[3].rel_error_mean < result.methods[4].rel_error_mean);
    CHECK(result.methods[4].all.kl_mean > 1e-4);
    CHECK(result.methods[4].budget_reached == test::rel(1));
  }
  // Later methods again have the whole prompt's rows.
  const LoopResult first = run_closed_loop(model, prompts, {specs[0]}, {});
  const LoopResult after = run_closed_loop(model, prompts, {specs[4], specs[0]}, {});
  CHECK(after.methods[1].all.kl_mean == first.methods[0].all.kl_mean);
  CHECK(after.methods[1].rel_error_mean == first.methods[0].rel_error_mean);
  prompts[1].chunks.clear();
  const LoopResult skipped = run_closed_loop(model, prompts, specs, {});
  CHECK(skipped.skipped.size() == 4);
  CHECK(test::has(skipped.skipped.front().reason, "chunks"));
}

TEST_CASE("a loop computes prompts with the pairs that a method leaves") {
  const Checkpoint model = read_checkpoint(random_model("sparse-loop"), Bytes{1 << 30});
  const std::vector<LoopPrompt> prompts = random_prompts(2, 150, 3);
  const auto tiles = [](double threshold) {
    return MethodSpec{
        "xattention",
        {{"tile", std::int64_t{8}}, {"stride", std::int64_t{4}}, {"threshold", threshold}},
        {}};
  };
  const LoopResult result =
      run_closed_loop(model, prompts, {{"full", {}, {}}, tiles(1), tiles(0.8), tiles(0.2)}, {});
  REQUIRE(result.methods.size() == 4);
  CHECK(result.methods[1].all.kl_mean < 1e-7);
  CHECK(result.methods[1].rel_error_mean < 1e-4);
  CHECK(result.methods[2].rel_error_mean > 1e-4);
  CHECK(result.methods[3].rel_error_mean > result.methods[2].rel_error_mean);
  CHECK(result.methods[3].all.kl_mean > 1e-6);
}

TEST_CASE("methods that weigh values by the output projection get the model's") {
  const Checkpoint model = read_checkpoint(random_model("projection"), Bytes{1 << 30});
  const std::vector<LoopPrompt> prompts = random_prompts(2, 100, 3);
  const Budget half{.fraction = 0.5, .entries = 0};
  const LoopResult result =
      run_closed_loop(model, prompts, {{"snapkv", {}, half}, {"criticalkv", {}, half}}, {});
  REQUIRE(result.methods.size() == 2);
  CHECK(result.skipped.empty());
  CHECK(result.methods[1].all.kl_mean > 0);
  CHECK(result.methods[1].all.kl_mean != result.methods[0].all.kl_mean);
  // Only the output projection of the last layer differs. No earlier computation reads it, but
  // criticalkv keeps different entries.
  Checkpoint other = model;
  Matrix& o = other.layers.back().o;
  for (std::size_t i = 0; i < o.data.size(); ++i) {
    if (i % static_cast<std::size_t>(o.columns) < static_cast<std::size_t>(kDim)) o.data[i] = 0;
  }
  const LoopResult moved =
      run_closed_loop(other, prompts, {{"snapkv", {}, half}, {"criticalkv", {}, half}}, {});
  CHECK(moved.methods[0].answer_error_mean == result.methods[0].answer_error_mean);
  CHECK(moved.methods[1].answer_error_mean != result.methods[1].answer_error_mean);
}

TEST_CASE("methods that need data missing from a loop are listed, and an unknown one is refused") {
  const Checkpoint model = read_checkpoint(random_model("skipped"), Bytes{1 << 30});
  const std::vector<LoopPrompt> prompts = random_prompts(1, 60, 2);
  const Budget half{.fraction = 0.5, .entries = 0};
  const LoopResult result = run_closed_loop(
      model, prompts, {{"full", {}, {}}, {"oracle-future", {}, half}, {"kvzip", {}, half}}, {});
  CHECK(result.methods.size() == 1);
  REQUIRE(result.skipped.size() == 2);
  CHECK(result.skipped[0].reason == "it reads tokens that do not exist yet");
  CHECK(test::has(result.skipped[1].reason, "repeat"));
  CHECK_THROWS_AS((void)run_closed_loop(model, prompts, {{"no-such-method", {}, {}}}, {}),
                  InputError);
}

TEST_CASE("broken prompts are refused with their place") {
  const fs::path file = fresh("broken-prompts") / "prompts.jsonl";
  const auto refused = [&](const std::string& text) {
    test::write(file, text);
    try {
      (void)read_prompts(file, kVocab, 64);
    } catch (const InputError& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  CHECK(refused("{\"tokens\": [1, 2], \"answer\": [3]}\n\n").empty());
  CHECK(test::has(refused("\n"), "expected a prompt per line"));
  CHECK(test::has(refused("{\"tokens\": [1, 2], \"answer\": [3]}\n{\"tokens\": [1, 50], "
                          "\"answer\": [3]}\n"),
                  "prompts.jsonl:2: /tokens/1"));
  CHECK(test::has(refused("{\"tokens\": [1], \"answer\": [3]}"), "at least two tokens"));
  CHECK(test::has(refused("{\"tokens\": [1, 2], \"answer\": []}"), "/answer"));
  CHECK(test::has(refused("{\"tokens\": [1, 2], \"answer\": [3], \"question_start\": 2}"),
                  "/question_start"));
  for (const char* chunks : {"[]", "[1]", "[0, 0]", "[0, 3]", "[0, 1.5]", "1", "[0, 2, 1]"}) {
    CAPTURE(chunks);
    CHECK(test::has(refused(fmt::format("{{\"tokens\": [1, 2, 3, 4], \"answer\": [3], "
                                        "\"question_start\": 3, \"chunks\": {}}}",
                                        chunks)),
                    "/chunks"));
  }
  CHECK(test::has(refused("{\"tokens\": [1, 2], \"answers\": [3]}"), "answer"));
  CHECK_FALSE(refused("not JSON").empty());
}

}  // namespace
}  // namespace kvsim
