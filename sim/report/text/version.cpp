#include "sim/report/text/version.hpp"

namespace kvsim {
std::string_view kvsim_version() { return KVSIM_VERSION; }

}  // namespace kvsim
