// Finch (Corallo and Papotti 2024; kvpress, FinchPress): the question at the prompt's end votes for
// the tokens before it.
//
//   score_i = mean, over the question's positions t and the group, of t a_{t,i}
//
// t, the number of keys before the query, compensates for rows that spread over more keys. There is
// no pooling. The question is kept. As in the released code without the delimiter, `question` is
// the number of tokens after it. Optional chunks are compressed one by one.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "models/math/attention/attend.hpp"
#include "models/methods/params.hpp"
#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

class QuestionVotes final : public Scorer {
 public:
  QuestionVotes(std::int32_t question, bool weighted) : question_{question}, weighted_{weighted} {}

  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const std::size_t n = tokens.size();
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    const auto question = std::min(static_cast<std::size_t>(question_), n);
    std::vector<double> all(n, std::numeric_limits<double>::infinity());
    if (question == n) return all;
    std::fill_n(all.begin(), n - question, 0.0);
    const HeadVectors& head = tokens.head;
    GroupAttention attention{head.group, head.head_dim, head.scale};
    std::vector<float> q(static_cast<std::size_t>(head.group) * d);
    for (std::size_t row = n - question; row < n; ++row) {
      const std::int64_t t = tokens.positions[row];
      for (std::int32_t g = 0; g < head.group; ++g) {
        std::copy_n(head.query(g, t).data(), d, q.data() + static_cast<std::size_t>(g) * d);
      }
      attention.run_weights(q, tokens.keys.first((row + 1) * d), {});
      const auto sum = attention.group_sum();
      const double weight = weighted_ ? static_cast<double>(row) : 1.0;
      for (std::size_t i = 0; i < n - question; ++i) all[i] += weight * sum[i];
    }
    const double rows = static_cast<double>(question) * head.group;
    for (std::size_t i = 0; i < n - question; ++i) all[i] /= rows;
    return all;
  }
  double forced_score(double highest) const override { return highest + 1; }  // as released
  bool non_negative() const override { return true; }
  MethodNeeds needs() const override {
    MethodNeeds needs;
    needs.prompt_scores = PromptScoreClass::kLastWindow;
    needs.prompt_window = question_;
    return needs;
  }
  // A product and a sum per element, in addition to the attention rows.
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 2.0 * question_ * shape.group * entries, .read = 0, .transient = Bytes{0}};
  }

 private:
  std::int32_t question_;
  bool weighted_;
};

/// Returns the number of entries kept in a chunk of `tokens`.
std::int64_t of_chunk(std::int64_t tokens, double ratio) {
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(tokens) * (1.0 - ratio)), 1, tokens);
}

struct Chunks {
  std::int64_t tokens = 0;  // per chunk; 0: the whole prompt is cut at once
  double ratio = 0;
  [[nodiscard]] std::int64_t kept(std::int64_t prompt) const {
    std::int64_t sum = 0;
    for (std::int64_t first = 0; first < prompt; first += tokens) {
      sum += of_chunk(std::min(tokens, prompt - first), ratio);
    }
    return sum;
  }
};

class FinchSelector final : public ScoredSelector {
 public:
  FinchSelector(std::shared_ptr<const Scorer> scorer, const SessionPlace& place,
                const Chunks& chunks)
      : ScoredSelector{std::move(scorer), place}, chunks_{chunks} {}
  std::vector<std::int32_t> plan(std::int32_t prompt, const EntryBudget& allotted) const override {
    if (chunks_.tokens == 0) return ScoredSelector::plan(prompt, allotted);
    KVSIM_CHECK(allotted.entries == chunks_.kept(prompt), "{} entries of {} tokens in chunks of {}",
                allotted.entries, prompt, chunks_.tokens);
    std::vector<std::int32_t> kept;
    for (std::int64_t first = 0; first < prompt; first += chunks_.tokens) {
      const std::int64_t run = std::min(chunks_.tokens, prompt - first);
      const auto of_run =
          std::span{score_}.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(run));
      for (const std::int32_t i : highest(of_run, of_chunk(run, chunks_.ratio))) {
        kept.push_back(static_cast<std::int32_t>(first) + i);
      }
    }
    return kept;
  }

 private:
  Chunks chunks_;
};

class FinchRule final : public ScoredRule {
 public:
  FinchRule(std::shared_ptr<const Scorer> scorer, const Chunks& chunks)
      : ScoredRule{std::move(scorer)}, chunks_{chunks} {}
  std::unique_ptr<Selector> start(const SessionPlace& place) const override {
    return std::make_unique<FinchSelector>(scorer(), place, chunks_);
  }

 private:
  Chunks chunks_;
};

std::shared_ptr<const SelectRule> resolve_finch(MethodResolver& resolver) {
  const std::int64_t prompt = resolver.prompt();
  Chunks chunks{.tokens = resolver.integer("chunk_length"), .ratio = resolver.number("ratio")};
  std::int64_t entries = 0;
  if (chunks.tokens == 0) {
    entries = resolve_ratio(resolver);
  } else {
    if (resolver.budget()) {
      resolver.refuse("chunk_length keeps a share of each chunk: expected ratio and no budget");
    }
    if (resolver.choice("budget") != "uniform" || resolver.choice("merge") != "drop") {
      resolver.refuse(
          fmt::format("chunk_length cuts every head in the same way: expected budget=uniform and "
                      "merge=drop, got budget={} and merge={}",
                      resolver.choice("budget"), resolver.choice("merge")));
    }
    entries = resolve_ratio(resolver, [&](double ratio) {
      return Chunks{.tokens = chunks.tokens, .ratio = ratio}.kept(prompt);
    });
  }
  std::int64_t question = resolver.integer("question");
  if (resolver.given("question") && question > entries && entries < prompt) {
    resolver.refuse(
        fmt::format("question: expected at most the {} entries kept of the prompt, as the question "
                    "is kept, got {}",
                    entries, question));
  }
  if (question > entries) {
    question = entries;
    resolver.resolve("question", question);
  }
  if (chunks.tokens > 0 &&
      static_cast<double>(chunks.tokens) <= static_cast<double>(question) / (1 - chunks.ratio)) {
    resolver.refuse(
        fmt::format("chunk_length: expected more than question / (1 - ratio) = {} tokens "
                    "(FinchPress), got {}",
                    static_cast<double>(question) / (1 - chunks.ratio), chunks.tokens));
  }
  const auto scorer = std::make_shared<QuestionVotes>(static_cast<std::int32_t>(question),
                                                      resolver.flag("normalize_scores"));
  return std::make_shared<FinchRule>(scorer, chunks);
}

}  // namespace

AxisChoice select_finch() {
  return scored_choice(
      "finch",
      {integer_param("question", "w", 64, 1, 1e6, "an integer in [1, 1000000]",
                     "tokens of the question at the prompt's end, whose queries vote",
                     "Finch: the tokens after the delimiter; 64 is the window of SnapKVPress"),
       integer_param("chunk_length", "", 0, 0, kManyEntries,
                     "an integer above question / (1 - ratio), or 0 for none",
                     "tokens of a chunk that is cut separately", "kvpress, FinchPress"),
       flag_param("normalize_scores", true,
                  "a query's attention is weighted by the number of keys before it",
                  "kvpress, FinchPress")},
      &resolve_finch);
}

}  // namespace kvsim
