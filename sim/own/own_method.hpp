#pragma once

// Methods from the user's files: a Python class with score(), or a shared library with the
// functions of sim/own/kvsim_method.h.

#include <filesystem>
#include <string>

namespace kvsim {

/// Loads the files that `name` refers to, and returns `name` with each of them replaced by its
/// method's name: "lib/my_press.py:MyPress+int8" becomes "my_press.py:MyPress+int8".
/// "FILE.py:CLASS" is a Python class, which runs in a separate process until this one ends;
/// "FILE.so" is a shared library. Relative paths start at `folder`. Thread-safe; a file is loaded
/// once. Errors: InputError if a file, class or function is missing or does not follow the
/// interface; if the file has changed since it was loaded; if the methods of two files have the
/// same name.
[[nodiscard]] std::string load_own_methods(const std::string& name,
                                           const std::filesystem::path& folder = {});

/// Returns the catalogue's spelling of `name` (canonical_method) after load_own_methods.
[[nodiscard]] std::string method_of_user(const std::string& name,
                                         const std::filesystem::path& folder = {});

}  // namespace kvsim
