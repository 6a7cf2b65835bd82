// Shared by readers: the source of their budget, and the caches that they support.

#include "models/methods/read/read.hpp"

#include <fmt/format.h>

namespace kvsim {

ParamInfo token_budget_param(std::int64_t value, std::string help, std::string source) {
  return integer_param("token_budget", "", value, 0, kManyEntries,
                       "an integer >= 1, or 0 for what the budget says", std::move(help),
                       std::move(source));
}

std::int64_t settle_token_budget(MethodResolver& settling, double fallback) {
  const std::string& reader = settling.choice("read");
  if (settling.choice("select") != "all" || settling.choice("share") != "none") {
    settling.refuse(
        fmt::format("read={} reads part of a cache that holds every token of its layer: "
                    "expected select=all and share=none, got select={} and share={}",
                    reader, settling.choice("select"), settling.choice("share")));
  }
  std::int64_t tokens = settling.integer("token_budget");
  if (settling.budget()) {
    if (settling.given("token_budget")) {
      settling.refuse("budget and token_budget are both given; one is the other");
    }
    tokens = settling.entries_of(*settling.budget());
  } else if (tokens == 0) {
    tokens = settling.budget_entries(fallback);
  }
  settling.settle("token_budget", tokens);
  return tokens;
}

std::int32_t group_of(const MethodResolver& settling) {
  const LayerShape& shape = settling.site().shape;
  if (shape.n_kv_heads < 1 || settling.word("granularity") == "query_head") return 1;
  return shape.n_heads / shape.n_kv_heads;
}

}  // namespace kvsim
