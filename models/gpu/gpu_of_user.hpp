#pragma once

#include <string>
#include <string_view>

#include "models/gpu/gpu.hpp"

namespace kvsim {

/// A GPU named by a user, and a note to report about the choice.
struct NamedGpu {
  const Gpu* gpu = nullptr;
  std::string note;  // empty if the name matches one card only
};

/// As find_gpu, for names from users: a short name ("h100") selects the card whose catalogue file
/// lists it under `short_names`, with a note that names the other cards. Readers of measured data
/// use find_gpu, which does not guess. Throws as find_gpu.
[[nodiscard]] NamedGpu gpu_of_user(std::string_view name);

}  // namespace kvsim
