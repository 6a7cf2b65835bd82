// Calibration files: fitted kernels, and rates of kernels measured on a device.
#include "models/cost/kernels/calibration.hpp"
#include "models/cost/rates/device_calibration.hpp"
#include "models/json/field.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer([&] {
    const Field document = Field::parse(fuzz::text_of(data, size), "input");
    if (is_device_calibration(document)) {
      (void)read_device_calibration(document, "input");
    } else {
      (void)read_calibration(document);
    }
  });
}
