#pragma once

// One loader per file type. Only for own_method.cpp.

#include <filesystem>
#include <memory>
#include <string>

#include "models/methods/select/own_scores.hpp"

namespace kvsim {

inline constexpr std::size_t kMaxOwnFile = std::size_t{1} << 30;

/// Loads the class `kind` of the Python file `path` into a process that ends with the returned
/// object. `hash`: hash of the file. The interpreter is $KVSIM_PYTHON, or the first of python3 in
/// PATH and /usr/bin/python3 that has NumPy. Errors: InputError.
[[nodiscard]] std::shared_ptr<const OwnMethod> load_python_method(const std::filesystem::path& path,
                                                                  const std::string& kind,
                                                                  const std::string& hash);

/// Loads the method of the shared library `path`, which stays loaded. Errors: InputError.
[[nodiscard]] std::shared_ptr<const OwnMethod> load_library_method(
    const std::filesystem::path& path, const std::string& hash);

}  // namespace kvsim
