#pragma once

#include <array>

#include "models/cost/kernels/form.hpp"

namespace kvsim {

/// The roofline with three fitted numbers, for families that need nothing else.
///
///   time = fixed + max(flops / (peak * compute), bytes / (bandwidth * memory))
inline constexpr std::array<Coefficient, 3> kPlainCoefficients{
    Coefficient{.name = "fixed",
                .unit = "us",
                .help = "launch and set-up",
                .start = 4,
                .low = 0.1,
                .high = 100},
    Coefficient{.name = "compute",
                .unit = "1",
                .help = "share of the arithmetic peak",
                .start = 0.7,
                .low = 0.02,
                .high = 1.2},
    Coefficient{.name = "memory",
                .unit = "1",
                .help = "share of the bandwidth",
                .start = 0.8,
                .low = 0.02,
                .high = 1.2}};
[[nodiscard]] double plain_microseconds(const KernelCall& call, const KernelFormat& format,
                                        const KernelGpu& gpu, const double* c);

}  // namespace kvsim
