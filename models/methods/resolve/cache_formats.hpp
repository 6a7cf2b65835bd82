#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// Names of the catalogue's methods that are only a format of the cache, as engines spell them:
/// "nvfp4", "turboquant_4bit_nc".
[[nodiscard]] const std::vector<std::string>& cache_formats();
/// The method of the cache format `word`, with `-` or `_`; nullopt: there is none.
[[nodiscard]] std::optional<std::string> find_cache_format(std::string_view word);
/// `spec` with its cache in `format`, a method's name. `make_method` refuses two formats.
[[nodiscard]] MethodSpec in_cache_format(MethodSpec spec, const std::string& format);

}  // namespace kvsim
