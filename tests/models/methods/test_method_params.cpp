// Parameters printed in a result keep the same number of entries when they are passed back.

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/methods/method.hpp"
#include "models/methods/select/scored.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kLayers = 5;
const MethodContext kSite{.recorded = Dtype::kFp16,
                          .shape = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64},
                          .windows = {},
                          .n_layers = kLayers,
                          .d_model = 512};

std::shared_ptr<const Method> resolve(const std::string& name, std::optional<Budget> budget,
                                      std::int64_t prompt, Params params = {}) {
  return make_method({.name = name, .params = std::move(params), .budget = budget}, prompt, kSite);
}

/// Entries of each layer after the prompt; -1 if only a replay can count them.
std::vector<std::int64_t> held(const Method& method, std::int64_t prompt) {
  std::vector<std::int64_t> all;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    all.push_back(method.entries_held(layer, prompt, prompt).value_or(-1));
  }
  return all;
}

std::vector<std::int64_t> prompts() {
  std::vector<std::int64_t> all{480, 1000, 1023, 1024, 1025, 2049, 4096, 5760, 10007, 131072};
  for (std::int64_t prompt = 90; prompt < 260; prompt += 7) all.push_back(prompt);
  return all;
}
const std::vector<Budget> kBudgets{{0.1, 0}, {0.2, 0},  {0.3, 0}, {1.0 / 3, 0}, {0.55, 0},
                                   {0.7, 0}, {0.9, 0},  {0, 40},  {0, 47},      {0, 64},
                                   {0, 87},  {0, 1000}, {1, 0}};

TEST_CASE("a ratio keeps its source value, of the whole and of parts") {
  for (std::int64_t whole = 1; whole < 700; ++whole) {
    for (std::int64_t kept = 0; kept <= whole; ++kept) {
      const double ratio = ratio_keeping(kept, whole);
      const auto n = static_cast<std::int64_t>(static_cast<double>(whole) * (1.0 - ratio));
      if (n != kept) FAIL("ratio ", ratio, " of ", whole, " keeps ", n, " and not ", kept);
      CHECK(std::abs(ratio - (1.0 - static_cast<double>(kept) / static_cast<double>(whole))) <
            1e-15);
    }
  }
}

TEST_CASE("the ratio printed for a budget keeps the same entries with and without the budget") {
  int checked = 0;
  for (const MethodInfo& info : builtin_methods()) {
    if (!takes_budget(info.name)) continue;
    for (const std::int64_t prompt : prompts()) {
      for (const Budget& budget : kBudgets) {
        std::shared_ptr<const Method> requested;
        try {
          requested = resolve(info.name, budget, prompt);
        } catch (const InputError&) {
          continue;  // less than the protected entries
        }
        const auto found = requested->params().find("ratio");
        if (found == requested->params().end()) break;
        const Params ratio{{"ratio", found->second}};
        INFO(info.name, " of ", prompt, ", budget ", budget.fraction, " or ", budget.entries,
             ", ratio ", std::get<double>(found->second));
        const auto alone = resolve(info.name, std::nullopt, prompt, ratio);
        CHECK(held(*alone, prompt) == held(*requested, prompt));
        for (const Budget& each :
             {budget, Budget{0, std::get<std::int64_t>(requested->params().at("budget"))}}) {
          const auto budgeted = resolve(info.name, each, prompt, ratio);
          CHECK(held(*budgeted, prompt) == held(*requested, prompt));
        }
        ++checked;
      }
    }
  }
  CHECK(checked > 3000);
}

TEST_CASE("the printed budget keeps the same number of entries when passed back") {
  int checked = 0;
  for (const MethodInfo& info : builtin_methods()) {
    if (!takes_budget(info.name)) continue;
    // Their budget in entries is a sum of separately rounded parts: layers, and runs of tokens.
    if (info.name == "pyramidkv" || info.name == "chunkpress") continue;
    for (const std::int64_t prompt : prompts()) {
      for (const Budget& budget : kBudgets) {
        std::shared_ptr<const Method> requested;
        try {
          requested = resolve(info.name, budget, prompt);
        } catch (const InputError&) {
          continue;
        }
        const auto found = requested->params().find("budget");
        if (found == requested->params().end()) break;
        INFO(info.name, " of ", prompt, ", budget ", budget.fraction, " or ", budget.entries,
             " as ", std::get<std::int64_t>(found->second));
        const auto again =
            resolve(info.name, Budget{0, std::get<std::int64_t>(found->second)}, prompt);
        CHECK(held(*again, prompt) == held(*requested, prompt));
        ++checked;
      }
    }
  }
  CHECK(checked > 10000);
}

TEST_CASE("a budget of all tokens keeps every token, also beyond the prompt") {
  constexpr std::int64_t kPrompt = 192, kTokens = 256;
  int checked = 0;
  for (const MethodInfo& info : builtin_methods()) {
    if (!takes_budget(info.name)) continue;
    std::shared_ptr<const Method> method;
    try {
      method = resolve(info.name, Budget{0, kTokens}, kPrompt);
    } catch (const InputError&) {
      continue;
    }
    // A budget that decreases with depth is a mean, and deep layers have less.
    if (info.name == "keepkv" || info.name == "pyramidinfer") continue;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto entries = method->entries_held(layer, kPrompt, kTokens);
      INFO(info.name, " layer ", layer);
      if (info.name == "d2o") CHECK(entries.has_value());  // no layer depends on data
      if (!entries) continue;
      CHECK(*entries == kTokens);
      ++checked;
    }
  }
  CHECK(checked > 60);
}

TEST_CASE("a ratio and a budget that disagree are refused with both numbers") {
  try {
    (void)resolve("knorm", Budget{0, 48}, 480, {{"ratio", 0.5}});
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK(std::string{error.what()} ==
          "method \"knorm\": budget and ratio are both given; one follows from the other, and the "
          "budget leaves 48 entries, the ratio 240");
  }
}

}  // namespace
}  // namespace kvsim
