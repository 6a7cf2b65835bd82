#pragma once

// KVSIM_CHECK for sources compiled by nvcc, which cannot use fmt: a condition and a message.

namespace kvsim::cuda_sim {

/// Throws ContractError.
[[noreturn]] void broken_promise(const char* file, int line, const char* condition,
                                 const char* what);

}  // namespace kvsim::cuda_sim

#define KVSIM_LAUNCH_CHECK(condition, what)                                    \
  do {                                                                         \
    if (!(condition)) [[unlikely]] {                                           \
      ::kvsim::cuda_sim::broken_promise(__FILE__, __LINE__, #condition, what); \
    }                                                                          \
  } while (false)
