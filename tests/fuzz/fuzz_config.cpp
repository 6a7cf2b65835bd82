// Hugging Face configurations.
#include "models/json/field.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvsim;
  return fuzz::expect_answer([&] {
    const Llm llm = read_hf_config(Field::parse(fuzz::text_of(data, size), "input"), "input");
    (void)cache_groups(llm, Dtype::kFp8E4m3);
    (void)published_weight_bytes(llm);
  });
}
