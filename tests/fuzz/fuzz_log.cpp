// Start-up logs of vLLM.
#include "sim/memory/vllm_log.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer([&] { (void)read_vllm_log(fuzz::text_of(data, size), "input"); });
}
