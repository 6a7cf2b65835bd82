// Request traces in any layout; the reader detects the format.
#include "tests/fuzz/target.hpp"
#include "traces/requests/formats/read_requests.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  const auto text = fuzz::text_of(data, size);
  fuzz::expect_answer([&] { (void)parse_requests(text, "input"); });
  return fuzz::expect_answer([&] {
    ReadOptions tolerant;
    tolerant.skip_bad = 1000;
    (void)parse_requests(text, "input", tolerant);
  });
}
