// Safetensors files, as traces.
#include "tests/fuzz/target.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const auto path = fuzz::as_file(fuzz::text_of(data, size));
  fuzz::expect_answer([&] {
    const Safetensors file = Safetensors::open(path);
    for (const auto& [name, entry] : file.tensors()) (void)file.bytes(entry);
  });
  return fuzz::expect_answer([&] { (void)Trace::open(path); });
}
