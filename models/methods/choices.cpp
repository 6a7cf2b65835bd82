// The list of every axis' choices. A new choice is a file of its own and a line here.

#include "models/methods/choices.hpp"

#include "models/methods/budget/budget.hpp"
#include "models/methods/merge/merge.hpp"
#include "models/methods/select/select.hpp"
#include "models/methods/store/store.hpp"

namespace kvsim {
namespace {

std::shared_ptr<const ShareRule> no_sharing(Settling& /*settling*/) { return nullptr; }
std::shared_ptr<const ReadRule> no_choice(Settling& /*settling*/) { return nullptr; }

AxisChoice share_none() {
  return {.axis = "share", .name = "none", .params = {}, .make = &no_sharing};
}
AxisChoice read_all() { return {.axis = "read", .name = "all", .params = {}, .make = &no_choice}; }

std::vector<AxisChoice> all_choices() {
  return {
      select_all(),       select_recent(),     select_accumulated(),
      select_kvzip(),     select_kvzip_plus(), select_kvzap(),
      select_dms(),       select_dmc(),        select_pyramid_infer(),

      budget_none(),      budget_uniform(),    budget_global(),
      budget_threshold(), budget_nested(),

      merge_drop(),       merge_residual(),    merge_accumulate(),

      share_none(),

      read_all(),

      store_recorded(),   store_fp32(),        store_fp16(),
      store_bf16(),
  };
}

}  // namespace

const std::vector<AxisChoice>& axis_choices() {
  static const std::vector<AxisChoice> choices = all_choices();
  return choices;
}

ParamInfo positions_param() {
  return word_param("positions", {"original", "rerotate"},
                    "RoPE position of a cached key: its own, or its index in the cache",
                    "StreamingLLM section 3.2; H2O's streaming variant calls it rolled");
}

ParamInfo number_param(std::string name, std::string symbol, double value, double low, double high,
                       std::string range, std::string help, std::string source,
                       std::vector<std::string> aliases) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}

ParamInfo integer_param(std::string name, std::string symbol, std::int64_t value, double low,
                        double high, std::string range, std::string help, std::string source,
                        std::vector<std::string> aliases) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}

ParamInfo word_param(std::string name, std::vector<std::string> words, std::string help,
                     std::string source) {
  std::string range = "one of";
  for (std::size_t i = 0; i < words.size(); ++i) {
    range += i == 0 ? " " : ", ";
    range += words[i];
  }
  const std::string first = words.front();
  return {std::move(name),   "", first, 0, 0, std::move(words), std::move(range), std::move(help),
          std::move(source), {}};
}

ParamInfo flag_param(std::string name, bool value, std::string help, std::string source) {
  return {std::move(name),   "", value, 0, 0, {}, "true or false", std::move(help),
          std::move(source), {}};
}

ParamInfo path_param(std::string name, std::string help, std::string source) {
  return {std::move(name),   "", std::string{}, 0, 0, {}, "a file's path", std::move(help),
          std::move(source), {}};
}

}  // namespace kvsim
