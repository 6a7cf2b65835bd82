#pragma once

#include <string>
#include <string_view>

#include "models/gpu/gpu.hpp"

namespace kvsim {

/// A GPU that a user named, and what to report about the choice.
struct NamedGpu {
  const Gpu* gpu = nullptr;
  std::string note;  // empty where the name fits one card only
};

/// As find_gpu, for names that users give: a short name ("h100") is the card whose catalogue file
/// lists it under `short_names`, with a note that names the other cards. Readers of measured data
/// use find_gpu, which assumes nothing. Errors: as find_gpu.
[[nodiscard]] NamedGpu gpu_of_user(std::string_view name);

}  // namespace kvsim
