// Calibration files.
#include "models/cost/kernels/calibration.hpp"
#include "models/json/field.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer(
      [&] { (void)read_calibration(Field::parse(fuzz::text_of(data, size), "input")); });
}
