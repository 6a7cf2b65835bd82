#pragma once

#include <string>
#include <utility>
#include <vector>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Returns sessions of agents as files of the Weka format: name and text of each. Prefix ids count
/// from 1 in each file, in order of first appearance. Errors: InputError for a trace that is not of
/// agents, and if its sessions share prefix ids, which local ids cannot represent.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> weka_texts(
    const RequestTrace& trace);

}  // namespace kvsim
