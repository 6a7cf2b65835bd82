// Module patterns in quantisation configurations: compared with std::regex, solved by hand, and
// hostile patterns.

#include <chrono>
#include <random>
#include <regex>
#include <stdexcept>
#include <string>

#include "models/llm/hf/name_regex.hpp"
#include "tests/support/check.hpp"

namespace kvsim::hf {
namespace {

bool matches(std::string_view pattern, std::string_view name) {
  return NameRegex{pattern}.matches_start(name);
}

TEST_CASE("expressions over module names match as in Python") {
  const std::string name = "model.layers.12.mlp.experts.3.gate_proj";
  for (const char* yes : {"model", ".*gate_proj$", R"(model\.layers\.\d+\.mlp.*)", "^model",
                          R"(.*experts\.\d{1,2}\.(gate|up)_proj)", "(?!.*self_attn).*mlp",
                          R"(.*\bmlp\b)", "(?:model|vision).", ".*[^a-z]3[.]", ".*?proj",
                          "(?P<root>model)", R"(model[.\w]+proj$)", "", "m{1}odel{0,2}"}) {
    INFO(yes);
    CHECK(matches(yes, name));
  }
  for (const char* no : {"layers", "model$", R"(.*experts\.\d{2}\.)", "(?=.*self_attn)model",
                         R"(model\Blayers)", "[^m]", ".*proj.", "model{2}"}) {
    INFO(no);
    CHECK_FALSE(matches(no, name));
  }
  CHECK(matches("a{b", "a{b"));
  CHECK(matches("a{,2}b", "aab"));
}

TEST_CASE("malformed expressions are refused") {
  for (const char* bad :
       {"(", ")", "(a", "a)", "[a", "*", "a**", "+a", "?", "\\", R"((a)\1)", "(?<=a)b", "(?<!a)b",
        "a{3,2}", "[z-a]", "(?Pa)", "((((((((((a))))))))))"}) {
    INFO(bad);
    CHECK_THROWS_AS(NameRegex{bad}, std::invalid_argument);
  }
}

TEST_CASE("random expressions agree with std::regex") {
  std::mt19937 random{11};
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto expression = [&](const auto& self, int depth) -> std::string {
    switch (depth <= 0 ? pick(4) : pick(10)) {
      case 0:
      case 1:
        return std::string(1, static_cast<char>('a' + pick(2)));
      case 2:
        return ".";
      case 3:
        return pick(2) != 0 ? "[^a]" : "[ab]";
      case 4:
      case 5:
        return self(self, depth - 1) + self(self, depth - 1);
      case 6:
        return "(?:" + self(self, depth - 1) + "|" + self(self, depth - 1) + ")";
      case 7:
        return "(" + self(self, depth - 1) + ")" + std::string(1, "*+?"[pick(3)]);
      case 8:
        return "(?:" + self(self, depth - 1) + "){1,2}";
      default:
        return (pick(2) != 0 ? "(?=" : "(?!") + self(self, depth - 1) + ")";
    }
  };
  int matched = 0;
  constexpr int kTries = 3000;
  for (int i = 0; i < kTries; ++i) {
    const std::string pattern = expression(expression, 3) + (pick(2) != 0 ? "$" : "");
    std::string name;
    for (int n = pick(7); n > 0; --n) name += static_cast<char>('a' + pick(3));
    const bool wanted =
        std::regex_search(name, std::regex{pattern}, std::regex_constants::match_continuous);
    INFO(pattern, " on \"", name, "\"");
    CHECK(matches(pattern, name) == wanted);
    matched += wanted ? 1 : 0;
  }
  CHECK(matched > kTries / 5);
  CHECK(matched < kTries * 4 / 5);
}

TEST_CASE("overlapping repetitions are matched quickly") {
  const std::string name(120, 'a');
  const auto start = std::chrono::steady_clock::now();
  for (const char* hostile :
       {"(.*)*(.*)*(.*)*(.*)*zzz$", "(([a-z]|[a-z.])+)+0000$", ".*.*.*.*.*.*.*.*.*.*zzz",
        "((((((a*)*)*)*)*)*)*z", "(?=.*(?=.*(?=.*(?=.*(?=.*z)))))", "(a|a|a|a)*(a|a|a|a)*b"}) {
    INFO(hostile);
    CHECK_FALSE(matches(hostile, name));
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{5});
}

}  // namespace
}  // namespace kvsim::hf
