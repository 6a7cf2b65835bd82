#include "sim/explorer/page/explorer_page.hpp"

namespace kvsim {

std::string_view explorer_core() { return {}; }

}  // namespace kvsim
