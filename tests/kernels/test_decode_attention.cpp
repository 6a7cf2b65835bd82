#include <limits>

#include "kernels/decode/decode_attention.hpp"
#include "kernels/reference.hpp"
#include "tests/kernels/kernel_run.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT
using kernels::DecodeShape;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Options {
  bool bias = false, logits = false, log_sum = false;
};

/// The cache beyond `entries` is left unwritten: reading it is a fault.
template <class T>
struct Run {
  Device device;
  DecodeShape shape;
  std::vector<float> q, keys, values, bias;
  std::vector<float> out, logits, log_sum;
  Counters counted;

  Run(const DecodeShape& s, Options o, std::uint64_t seed = 7) : shape{s} {
    const std::int64_t rows = s.batch * s.n_heads;
    const std::int64_t stored_heads = s.batch * s.n_kv_heads;
    const auto rounded = [&](std::uint64_t stream, std::int64_t n) {
      return read_back(stored<T>(draw(seed + stream, n, -2, 2)));
    };
    q = rounded(0, rows * s.head_dim);
    keys = rounded(1, stored_heads * s.capacity * s.head_dim);
    values = rounded(2, stored_heads * s.capacity * s.head_dim);
    if (o.bias) {
      bias = draw(seed + 3, stored_heads * s.capacity, -3, 3);
      // Some entries are hidden, including the whole first tile of the first head if there are
      // other entries.
      for (std::size_t e = 0; e < bias.size(); e += 5) bias[e] = -kInfinity;
      for (std::int64_t e = 0; e < 64 && s.entries > 64; ++e) {
        bias[static_cast<std::size_t>(e)] = -kInfinity;
      }
      for (std::int64_t h = 0; h < stored_heads; ++h) {
        bias[static_cast<std::size_t>(h * s.capacity + s.entries - 1)] = 0.25F;
      }
    }
    const auto cache_buffer = [&](const char* name, const std::vector<float>& x) {
      auto buffer = std::make_unique<Buffer<T>>(device, name, std::ssize(x));
      const auto typed = stored<T>(x);
      for (std::int64_t h = 0; h < stored_heads; ++h) {
        const std::int64_t first = h * s.capacity * s.head_dim;
        buffer->upload(std::span{typed}.subspan(static_cast<std::size_t>(first),
                                                static_cast<std::size_t>(s.entries * s.head_dim)),
                       first);
      }
      return buffer;
    };
    Buffer<T> q_buffer{device, "q", stored<T>(q)};
    const auto k_buffer = cache_buffer("keys", keys);
    const auto v_buffer = cache_buffer("values", values);
    Buffer<float> bias_buffer{device, "bias", bias};
    Buffer<T> out_buffer{device, "out", rows * s.head_dim};
    Buffer<float> logits_buffer{device, "logits", o.logits ? rows * s.capacity : 0};
    Buffer<float> log_sum_buffer{device, "log_sum", o.log_sum ? rows : 0};
    Buffer<float> partial{device, "partial", rows * s.splits() * s.head_dim};
    Buffer<float> partial_max{device, "partial_max", rows * s.splits()};
    Buffer<float> partial_sum{device, "partial_sum", rows * s.splits()};
    decode_attention<T>({&device}, shape,
                        {.q = in(q_buffer),
                         .keys = in(*k_buffer),
                         .values = in(*v_buffer),
                         .bias = in(bias_buffer),
                         .scale = scale(),
                         .out = test::out(out_buffer),
                         .logits = test::out(logits_buffer),
                         .log_sum = test::out(log_sum_buffer),
                         .partial = test::out(partial),
                         .partial_max = test::out(partial_max),
                         .partial_sum = test::out(partial_sum)});
    counted = device.counters();
    out = read_back(out_buffer.download());
    if (o.log_sum) log_sum = log_sum_buffer.download();
    if (o.logits) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto row = logits_buffer.download(r * s.capacity, s.entries);
        logits.insert(logits.end(), row.begin(), row.end());
      }
    }
  }

  [[nodiscard]] float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }
  [[nodiscard]] kernels::DecodeReference reference() const {
    return kernels::decode_reference(shape, static_cast<double>(scale()), q, keys, values, bias);
  }
};

template <class T>
void check_run(const DecodeShape& shape, Options options) {
  INFO("entries ", shape.entries, " heads ", shape.n_heads, "/", shape.n_kv_heads, " d ",
       shape.head_dim, " split ", shape.entries_per_split, " bias ", options.bias);
  const Run<T> run{shape, options};
  const auto reference = run.reference();
  // The output is rounded to T; sums of products in fp32 add a few ulps.
  CHECK(max_error(run.out, reference.out) < kRounding<T> + 2e-6);
  if (options.log_sum) CHECK(max_error(run.log_sum, reference.log_sum) < 2e-6);
  if (options.logits) {
    for (std::size_t i = 0; i < run.logits.size(); ++i) {
      if (std::isinf(reference.logits[i])) {
        CHECK(run.logits[i] == -kInfinity);
      } else if (std::abs(static_cast<double>(run.logits[i]) - reference.logits[i]) > 2e-5) {
        FAIL_CHECK("logit ", i, ": ", run.logits[i], ", expected ", reference.logits[i]);
      }
    }
  }
  check_traffic(run.counted,
                decode_traffic(shape, sizeof(T), options.bias, options.logits, options.log_sum));
  CHECK(run.counted.flops == kernels::decode_flops(shape));
}

TEST_CASE_TEMPLATE(
    "decode attention agrees with the reference at odd lengths and moves the predicted bytes", T,
    float, kv::Half, kv::BFloat16) {
  for (const std::int64_t entries : {1, 31, 257}) {
    for (const auto& [heads, kv_heads] : {std::pair<std::int64_t, std::int64_t>{2, 2}, {8, 1}}) {
      check_run<T>({.batch = 2,
                    .n_heads = heads,
                    .n_kv_heads = kv_heads,
                    .head_dim = 64,
                    .entries = entries,
                    .capacity = entries + 3,
                    .entries_per_split = 128},
                   {.bias = heads == 8, .logits = heads == 2, .log_sum = true});
    }
  }
  check_run<T>({.batch = 1,
                .n_heads = 4,
                .n_kv_heads = 2,
                .head_dim = 128,
                .entries = 200,
                .capacity = 200,
                .entries_per_split = 64},
               {.bias = true, .logits = true, .log_sum = false});
}

TEST_CASE("decode attention accepts any group and splits larger ones, which read the cache again") {
  for (const std::int64_t group : {3, 5, 7, 8, 9, 16}) {
    check_run<kv::BFloat16>({.batch = 1,
                             .n_heads = 2 * group,
                             .n_kv_heads = 2,
                             .head_dim = 64,
                             .entries = 65,
                             .capacity = 80,
                             .entries_per_split = 64},
                            {.bias = true, .logits = true, .log_sum = true});
  }
}

TEST_CASE(
    "decode attention: splitting changes only rounding and traffic still matches the formula") {
  DecodeShape shape{.batch = 1,
                    .n_heads = 2,
                    .n_kv_heads = 1,
                    .head_dim = 128,
                    .entries = 700,
                    .capacity = 704,
                    .entries_per_split = 704};
  const Run<float> whole{shape, {}};
  for (const std::int64_t split : {64, 320}) {
    shape.entries_per_split = split;
    const Run<float> parts{shape, {}};
    CHECK(max_error(parts.out, {whole.out.begin(), whole.out.end()}) < 1e-6);
  }
}

TEST_CASE("decode attention: same inputs, same bits and counts") {
  const DecodeShape shape{.batch = 1,
                          .n_heads = 4,
                          .n_kv_heads = 1,
                          .head_dim = 64,
                          .entries = 100,
                          .capacity = 100,
                          .entries_per_split = 64};
  const Run<kv::Half> a{shape, {.bias = true, .logits = true, .log_sum = true}};
  const Run<kv::Half> b{shape, {.bias = true, .logits = true, .log_sum = true}};
  CHECK(a.out == b.out);
  CHECK(a.log_sum == b.log_sum);
  CHECK(a.counted == b.counted);
}

TEST_CASE("decode attention: the cache's sectors are read once and none in part") {
  const DecodeShape shape{.batch = 1,
                          .n_heads = 1,
                          .n_kv_heads = 1,
                          .head_dim = 128,
                          .entries = 512,
                          .capacity = 512,
                          .entries_per_split = 512};
  const Run<kv::Half> run{shape, {}};
  const std::int64_t cache = 2 * 512 * 256 / 32;
  // The rest: 8 sectors of the query for each of four warps; 16 sectors of the partial output, read
  // in two halves; a maximum and a sum.
  CHECK(run.counted.load_sectors == cache + 4 * 8 + 2 * 16 + 2);
}

TEST_CASE("score rows: logits and their sums become probabilities") {
  for (const std::int64_t entries : {1, 31, 257}) {
    const std::int64_t rows = 3;
    const std::int64_t stride = (entries + 3) / 4 * 4 + 4;
    const auto logits = draw(4, rows * stride, -5, 5);
    const auto log_sum = draw(5, rows, 4, 6);
    Device device;
    Buffer<float> row_buffer{device, "rows", logits};
    Buffer<float> sum_buffer{device, "log_sum", log_sum};
    normalise_rows({&device}, rows, entries, stride, in(sum_buffer), out(row_buffer));
    check_traffic(device.counters(), kernels::normalise_traffic(rows, entries));
    const auto p = row_buffer.download();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t e = 0; e < stride; ++e) {
        const auto i = static_cast<std::size_t>(r * stride + e);
        const double expected = std::exp(static_cast<double>(logits[i]) -
                                         static_cast<double>(log_sum[static_cast<std::size_t>(r)]));
        // Padding is unchanged.
        CHECK(static_cast<double>(p[i]) ==
              rel(e < entries ? expected : static_cast<double>(logits[i]), 1e-6));
      }
    }
  }
}

TEST_CASE("decode attention refuses unsupported shapes") {
  const DecodeShape good{.batch = 1,
                         .n_heads = 2,
                         .n_kv_heads = 1,
                         .head_dim = 64,
                         .entries = 4,
                         .capacity = 4,
                         .entries_per_split = 64};
  CHECK_NOTHROW(Run<float>(good, {}));
  const auto with = [&](auto change) {
    DecodeShape bad = good;
    change(bad);
    Device device;
    Buffer<float> big{device, "big", draw(1, 4096)};
    const Span<float> all = out(big);
    decode_attention<float>({&device}, bad,
                            {.q = all,
                             .keys = all,
                             .values = all,
                             .bias = {},
                             .out = all,
                             .logits = {},
                             .log_sum = {},
                             .partial = all,
                             .partial_max = all,
                             .partial_sum = all});
  };
  CHECK_THROWS(with([](DecodeShape& s) { s.head_dim = 96; }));
  CHECK_THROWS(with([](DecodeShape& s) { s.n_heads = 3, s.n_kv_heads = 2; }));
  CHECK_THROWS(with([](DecodeShape& s) { s.capacity = 3; }));
  CHECK_THROWS(with([](DecodeShape& s) { s.entries = 0; }));
  CHECK_THROWS(with([](DecodeShape& s) { s.entries_per_split = 100; }));
  CHECK_THROWS(with([](DecodeShape& s) { s.capacity = s.entries = 100'000; }));
}

}  // namespace
}  // namespace kvsim::on_sim
