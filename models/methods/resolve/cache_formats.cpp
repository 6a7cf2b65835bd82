#include "models/methods/resolve/cache_formats.hpp"

#include <algorithm>

namespace kvsim {
namespace {

std::string spelled(std::string_view word, char from, char to) {
  std::string out{word};
  std::replace(out.begin(), out.end(), from, to);
  return out;
}

bool is_format(const MethodInfo& method) {
  const auto neutral = [&](const char* axis, std::string_view choice) {
    return method.axes.at(axis) == choice;
  };
  return !neutral("store", "recorded") && neutral("select", "all") && neutral("budget", "none") &&
         neutral("merge", "drop") && neutral("share", "none") && neutral("read", "all") &&
         neutral("tier", "none") && neutral("prefill", "full");
}

}  // namespace

const std::vector<std::string>& cache_formats() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const MethodInfo& method : builtin_methods()) {
      if (is_format(method)) out.push_back(spelled(method.name, '-', '_'));
    }
    return out;
  }();
  return names;
}

std::optional<std::string> find_cache_format(std::string_view word) {
  const std::string name = spelled(word, '_', '-');
  for (const MethodInfo& method : builtin_methods()) {
    if (method.name == name && is_format(method)) return name;
  }
  return std::nullopt;
}

MethodSpec in_cache_format(MethodSpec spec, const std::string& format) {
  spec.name = spec.name == "full" ? format : spec.name + "+" + format;
  return spec;
}

}  // namespace kvsim
