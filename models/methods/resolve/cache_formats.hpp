#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// Names of the catalogue's methods that only change the cache's format, in the engines' spelling:
/// "nvfp4", "turboquant_4bit_nc".
[[nodiscard]] const std::vector<std::string>& cache_formats();
/// Returns the method of the cache format `word`, spelled with `-` or `_`; nullopt if there is
/// none.
[[nodiscard]] std::optional<std::string> find_cache_format(std::string_view word);
/// Returns `spec` with its cache in `format`, a method's name. `make_method` refuses two formats.
[[nodiscard]] MethodSpec in_cache_format(MethodSpec spec, const std::string& format);

}  // namespace kvsim
