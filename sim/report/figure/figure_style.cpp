#include "sim/report/figure/figure_style.hpp"

namespace kvsim {

const std::vector<std::string>& figure_formats() {
  static const std::vector<std::string> formats{"svg", "png", "pdf"};
  return formats;
}

}  // namespace kvsim
