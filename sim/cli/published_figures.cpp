// Figures of `kvsim validate published`.

#include "sim/cli/published_report.hpp"

namespace kvsim {

std::vector<Figure> published_figures(const PublishedScore& /*score*/) { return {}; }

}  // namespace kvsim
