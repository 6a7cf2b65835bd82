// Recorded allocations, and PYTORCH_CUDA_ALLOC_CONF.
#include "sim/memory/allocator_config.hpp"
#include "tests/fuzz/target.hpp"
#include "validation/allocator/allocator_trace.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const auto text = fuzz::text_of(data, size);
  fuzz::expect_answer([&] { (void)parse_allocator_trace(text, "input"); });
  return fuzz::expect_answer([&] { (void)parse_alloc_conf(text, "input"); });
}
