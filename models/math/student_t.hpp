#pragma once

#include <cstdint>

namespace kvsim {

/// The 0.975 quantile of Student's t with `degrees` >= 1 degrees of freedom, to 1e-3.
[[nodiscard]] double student_t_975(std::int64_t degrees);

}  // namespace kvsim
