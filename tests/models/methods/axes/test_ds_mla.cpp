// Records of latent rows: bytes, the worked example, and the exact parts.

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/math/low_float.hpp"
#include "models/math/low_int.hpp"
#include "models/methods/composed.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

using namespace kvsim;
using test::rel;

namespace {

using Row = std::vector<float>;

const Row kA{.10009765625F,   -.44921875F, .80078125F, 1.296875F,  -2.59375F,  3.09375F,
             -.050048828125F, .55078125F,  1.046875F,  -1.703125F, .30078125F, -.2001953125F,
             2.203125F,       -.8984375F,  .6484375F,  -3.703125F};
constexpr std::size_t kRow = 576, kLatent = 512;

std::shared_ptr<const Method> method_of(const std::string& record, std::int32_t head_dim = 576,
                                        std::int32_t kv_heads = 1) {
  return make_method({"full+store=ds-mla", {{"record", record}}, {}}, 64,
                     {.recorded = Dtype::kBf16,
                      .shape = {.n_heads = 16, .n_kv_heads = kv_heads, .head_dim = head_dim},
                      .n_layers = 2});
}

struct Stored {
  Row key, value;
};
Stored stored(const std::string& record, const Row& key) {
  const auto method = method_of(record);
  auto store = as_composed(*method).parts().store->start(
      {.layer = 0, .n_layers = 2, .head_dim = 576}, Dtype::kBf16);
  Row value = key;
  std::fill(value.begin() + kLatent, value.end(), 0.0F);
  EntryTable table{576};
  table.append(0, key, value);
  store->appended(table, 0);
  return {{table.key(0).begin(), table.key(0).end()},
          {table.value(0).begin(), table.value(0).end()}};
}

Row repeated(const Row& part) {
  Row row;
  while (row.size() < kRow) row.push_back(part[row.size() % part.size()]);
  return row;
}

std::int64_t entry_bytes(const std::string& record) {
  const LayerShape one{.n_heads = 16, .n_kv_heads = 1, .head_dim = 576};
  const auto method = method_of(record);
  return (method->rows_bytes(0, one, Dtype::kBf16, 11, 11).kv -
          method->rows_bytes(0, one, Dtype::kBf16, 10, 10).kv)
      .count();
}

}  // namespace

TEST_CASE("ds-mla: bytes of a record, which is key and value") {
  CHECK(entry_bytes("fp8") == 656);
  CHECK(entry_bytes("nvfp4") == 352);
  CHECK(entry_bytes("recorded") == 1152);
  const LayerShape one{.n_heads = 16, .n_kv_heads = 1, .head_dim = 576};
  const StepTraffic step = method_of("fp8")->decode_traffic(0, one, Dtype::kBf16, 1000, false);
  CHECK(step.attention_read == 656 * 1000);
  CHECK(step.append_write == 656);
}

TEST_CASE("ds-mla: the worked example's tile, RoPE bit by bit, tiles apart") {
  const Row row = repeated(kA);
  const Stored fp8 = stored("fp8", row);
  const std::vector<int> bytes{84,  230, 108, 114, 250, 124, 204, 104,
                               112, 245, 97,  220, 120, 238, 106, 254};
  for (std::size_t i = 0; i < kLatent; ++i) {
    const float code = e4m3_value(static_cast<std::uint8_t>(bytes[i % 16]));
    CHECK(fp8.key[i] == rel(code * .008265904, 1e-6));
    CHECK(fp8.value[i] == fp8.key[i]);
  }
  for (std::size_t i = kLatent; i < kRow; ++i) {
    CHECK(fp8.key[i] == row[i]);
    CHECK(fp8.value[i] == 0);
  }
  // An outlier changes only its tile.
  Row outlier = row;
  outlier[130] = 100;
  const Stored other = stored("fp8", outlier);
  for (std::size_t i = 0; i < kRow; ++i) {
    if (i / 128 != 1) CHECK(other.key[i] == fp8.key[i]);
  }
  CHECK(stored("fp8", Row(kRow, 0.F)).key == Row(kRow, 0.F));

  const Stored nvfp4 = stored("nvfp4", row);
  const Row expected{0,      -.3125F, .9375F, 1.25F,   -2.5F, 2.5F,    0,     .625F,
                     .9375F, -1.875F, .3125F, -.3125F, 2.5F,  -.9375F, .625F, -3.75F};
  for (std::size_t i = 0; i < kLatent; ++i) CHECK(nvfp4.key[i] == expected[i % 16]);
  for (std::size_t i = kLatent; i < kRow; ++i) {
    CHECK(nvfp4.key[i] == round_to_fp8(row[i], Fp8::kE4m3));
    CHECK(nvfp4.value[i] == 0);
  }
  CHECK(stored("recorded", row).key == row);
}

TEST_CASE("ds-mla: rows of other sizes are refused") {
  CHECK_THROWS_AS((void)method_of("fp8", 128, 8), InputError);
  CHECK_THROWS_AS((void)method_of("fp8", 576, 2), InputError);
}
