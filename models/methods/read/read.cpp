// Shared by readers: the budget, the supported caches, and reads of pages.

#include "models/methods/read/read.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace kvsim {

ParamInfo token_budget_param(std::int64_t value, std::string help, std::string source) {
  return integer_param("token_budget", "", value, 0, kManyEntries,
                       "an integer >= 1, or 0 to use the budget", std::move(help),
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
      resolver.refuse("budget and token_budget are both given; they set the same number");
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

void attend_rows(GroupAttention& attention, std::span<const float> q, std::span<const float> keys,
                 std::span<const float> values, ReadOutcome& outcome) {
  attention.run(q, keys, values, {});
  outcome.out.assign(attention.output().begin(), attention.output().end());
  for (std::size_t g = 0; g < outcome.log_sums.size(); ++g) {
    outcome.log_sums[g] = attention.log_sum(static_cast<std::int32_t>(g));
  }
}

void gather_pages(const EntryTable& entries, std::span<const std::size_t> pages, std::int64_t page,
                  std::vector<float>& keys, std::vector<float>& values) {
  const auto held = static_cast<std::size_t>(entries.size());
  const auto d = entries.keys().size() / std::max<std::size_t>(1, held);
  const auto full = static_cast<std::size_t>(page);
  keys.clear();
  values.clear();
  for (const std::size_t number : pages) {
    const std::size_t first = number * full;
    const std::size_t n = std::min(full, held - first);
    const auto k = entries.keys().subspan(first * d, n * d);
    const auto v = entries.values().subspan(first * d, n * d);
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  }
}

}  // namespace kvsim
