// Shared by readers: the source of their budget, and the caches that they support.

#include "models/methods/read/read.hpp"

#include <fmt/format.h>

namespace kvsim {

ParamInfo token_budget_param(std::int64_t value, std::string help, std::string source) {
  return integer_param("token_budget", "", value, 0, kManyEntries,
                       "an integer >= 1, or 0 for what the budget says", std::move(help),
                       std::move(source));
}

std::int64_t resolve_token_budget(MethodResolver& resolver, double fallback) {
  const std::string& reader = resolver.choice("read");
  if (resolver.choice("select") != "all" || resolver.choice("share") != "none") {
    resolver.refuse(
        fmt::format("read={} reads part of a cache that holds every token of its layer: "
                    "expected select=all and share=none, got select={} and share={}",
                    reader, resolver.choice("select"), resolver.choice("share")));
  }
  std::int64_t tokens = resolver.integer("token_budget");
  if (resolver.budget()) {
    if (resolver.given("token_budget")) {
      resolver.refuse("budget and token_budget are both given; one is the other");
    }
    tokens = resolver.entries_of(*resolver.budget());
  } else if (tokens == 0) {
    tokens = resolver.budget_entries(fallback);
  }
  resolver.resolve("token_budget", tokens);
  return tokens;
}

std::int32_t group_of(const MethodResolver& resolver) {
  const LayerShape& shape = resolver.site().shape;
  if (shape.n_kv_heads < 1 || resolver.word("granularity") == "query_head") return 1;
  return shape.n_heads / shape.n_kv_heads;
}

}  // namespace kvsim
