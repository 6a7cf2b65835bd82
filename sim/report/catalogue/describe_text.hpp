#pragma once

// Pieces of the texts of `kvsim show`.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// "label value" lines; values are aligned and wrapped at `width`.
class Facts {
 public:
  void add(std::string label, std::string value);
  [[nodiscard]] std::string str(std::size_t width) const;

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

/// "sources" and a line per figure.
[[nodiscard]] std::string sources_text(const std::map<std::string, std::string>& sources,
                                       std::size_t width);

}  // namespace kvsim
