// Hugging Face configurations.
#include "models/json/field.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer(
      [&] { (void)read_hf_config(Field::parse(fuzz::text_of(data, size), "input"), "input"); });
}
