#pragma once

#include <string>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// The declared parameter that `word` names, by name or alias; nullptr if none does.
[[nodiscard]] const ParamInfo* find_param(const std::vector<ParamInfo>& known,
                                          std::string_view word);

/// Whether two declarations of one name are equal: choices of different axes may share a parameter
/// (KeepKV's averages), or have two with one name, which no value could distinguish.
[[nodiscard]] bool means_the_same(const ParamInfo& a, const ParamInfo& b);

/// Every declared parameter at its given or default value. An integer passes for a number. Errors:
/// InputError naming parameter, value, range and the range's source; unknown names get the nearest.
[[nodiscard]] Params settle_params(const std::string& method, const std::vector<ParamInfo>& known,
                                   const Params& given);

/// Reads a settled parameter. Errors: ContractError if it is missing or of another type.
[[nodiscard]] double param_number(const Params& params, const std::string& name);
[[nodiscard]] std::int64_t param_integer(const Params& params, const std::string& name);
[[nodiscard]] const std::string& param_word(const Params& params, const std::string& name);

/// "Fraction of `whole` if below 1, else absolute", truncated as the released codes do.
[[nodiscard]] std::int64_t share_or_count(double value, std::int64_t whole);

}  // namespace kvsim
