#pragma once

#include <string>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// The declared parameter with name or alias `word`; nullptr if there is none.
[[nodiscard]] const ParamInfo* find_param(const std::vector<ParamInfo>& known,
                                          std::string_view word);

/// True if two declarations of one name are the same. Choices of different axes may share a
/// parameter (KeepKV's averages); two different parameters with one name would be ambiguous.
[[nodiscard]] bool means_the_same(const ParamInfo& a, const ParamInfo& b);

/// Returns every declared parameter with its given or default value. An integer is accepted for a
/// number. Errors: InputError that names the parameter, its value, range and the source of the
/// range; for an unknown name, the most similar name.
[[nodiscard]] Params resolve_params(const std::string& method, const std::vector<ParamInfo>& known,
                                    const Params& given);

/// Reads a resolved parameter. Errors: ContractError if it is missing or has another type.
[[nodiscard]] double param_number(const Params& params, const std::string& name);
[[nodiscard]] std::int64_t param_integer(const Params& params, const std::string& name);
[[nodiscard]] const std::string& param_word(const Params& params, const std::string& name);

/// "Fraction of `whole` if below 1, else absolute", truncated as in the released implementations.
[[nodiscard]] std::int64_t share_or_count(double value, std::int64_t whole);

}  // namespace kvsim
