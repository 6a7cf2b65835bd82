// Score updates, selection and compaction: operations of a method on a cache between two steps.

#include "kernels/reference.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/select/compact.hpp"
#include "kernels/select/select.hpp"
#include "tests/kernels/kernel_run.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT

std::int64_t padded(std::int64_t n) { return (n + 3) / 4 * 4; }

/// Rows of scores, some of them equal, some negative, some zero of either sign.
std::vector<float> coarse(std::uint64_t seed, std::int64_t n, double step) {
  auto values = draw(seed, n, -1, 1);
  for (float& x : values) x = static_cast<float>(std::trunc(static_cast<double>(x) / step) * step);
  return values;
}

TEST_CASE("score updates: accumulated and decayed for any length, group and row count") {
  for (const std::int64_t entries : {1, 3, 31, 257, 1030}) {
    for (const std::int64_t group : {1, 4}) {
      for (const float decay : {1.0F, 0.9F}) {
        INFO("entries ", entries, " group ", group, " decay ", decay);
        const kernels::ScoreShape shape{
            .rows = 3, .group = group, .entries = entries, .stride = padded(entries) + 4};
        const auto p = draw(1, shape.rows * group * shape.stride, 0, 1);
        const auto scores = draw(2, shape.rows * shape.stride, 0, 10);
        Device device;
        Buffer<float> p_buffer{device, "probabilities", p};
        Buffer<float> s_buffer{device, "scores", scores};
        update_scores({&device}, shape, decay, in(p_buffer), out(s_buffer));
        check_traffic(device.counters(), update_scores_traffic(shape));
        CHECK(device.counters().flops == shape.rows * entries * (group + 2));
        const auto expected = update_scores_reference(shape, static_cast<double>(decay), p, scores);
        std::vector<float> got;
        for (std::int64_t r = 0; r < shape.rows; ++r) {
          const auto row = s_buffer.download(r * shape.stride, shape.stride);
          got.insert(got.end(), row.begin(), row.begin() + entries);
          for (std::int64_t e = entries; e < shape.stride; ++e) {  // padding is unchanged
            CHECK(row[static_cast<std::size_t>(e)] ==
                  scores[static_cast<std::size_t>(r * shape.stride + e)]);
          }
        }
        CHECK(max_error(got, expected) < 1e-6);
      }
    }
  }
}

TEST_CASE("argmin: the first of the smallest at any length") {
  for (const std::int64_t entries : {1, 2, 31, 257, 1030, 5000}) {
    for (const double step : {1e-6, 0.25, 4.0}) {  // all differ, many equal, all zero
      INFO("entries ", entries, " step ", step);
      const kernels::SelectShape shape{.rows = 5, .entries = entries, .stride = padded(entries)};
      const auto scores = coarse(3, shape.rows * shape.stride, step);
      Device device;
      Buffer<float> s_buffer{device, "scores", scores};
      Buffer<std::int64_t> position{device, "position", shape.rows};
      argmin_rows({&device}, shape, in(s_buffer), out(position));
      CHECK(position.download() == argmin_reference(shape, scores));
      check_traffic(device.counters(), argmin_traffic(shape));
    }
  }
}

TEST_CASE("top-C: the largest, the first among equals, ascending, at any length and number kept") {
  for (const std::int64_t entries : {1, 31, 257, 1030}) {
    for (const std::int64_t keep : {1, 7, 31, 256, 257, 2000}) {
      for (const double step : {1e-6, 0.25, 4.0}) {
        INFO("entries ", entries, " keep ", keep, " step ", step);
        const kernels::SelectShape shape{
            .rows = 3, .entries = entries, .stride = padded(entries), .keep = keep};
        const auto scores = coarse(5, shape.rows * shape.stride, step);
        Device device;
        Buffer<float> s_buffer{device, "scores", scores};
        Buffer<std::int32_t> kept{device, "kept", shape.rows * std::min(keep, entries)};
        top_rows({&device}, shape, in(s_buffer), out(kept));
        CHECK(kept.download() == top_reference(shape, scores));
        check_traffic(device.counters(), top_traffic(shape));
      }
    }
  }
}

TEST_CASE_TEMPLATE("compaction: kept entries move bit for bit and nothing else is written", T,
                   float, kv::Half, kv::BFloat16) {
  for (const std::int64_t kept : {1, 31, 257}) {
    const kernels::GatherShape shape{.rows = 2,
                                     .entry_bytes = 80 * sizeof(T),  // not a power of two
                                     .capacity_from = 300,
                                     .capacity_to = kept + 2,
                                     .kept = kept};
    const auto values = stored<T>(draw(6, 2 * 300 * 80));
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < 2 * kept; ++i) {
      positions.push_back(static_cast<std::int32_t>((i % kept) * 300 / kept + (i >= kept ? 1 : 0)) %
                          300);
    }
    Device device;
    Buffer<T> from{device, "from", values};
    Buffer<std::int32_t> kept_buffer{device, "kept", positions};
    Buffer<T> to{device, "to", 2 * (kept + 2) * 80};
    gather_entries<T>({&device}, shape, in(from), in(kept_buffer), out(to));
    check_traffic(device.counters(), gather_traffic(shape));
    for (std::int64_t r = 0; r < 2; ++r) {
      const auto got = read_back(to.download(r * (kept + 2) * 80, kept * 80));
      std::vector<float> expected;
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t source = positions[static_cast<std::size_t>(r * kept + i)];
        for (std::int64_t j = 0; j < 80; ++j) {
          expected.push_back(
              kv::to_float(values[static_cast<std::size_t>((r * 300 + source) * 80 + j)]));
        }
      }
      CHECK(got == expected);
      // Space after the kept entries stays unwritten.
      CHECK_THROWS_AS((void)to.download((r * (kept + 2) + kept) * 80, 1), cuda_sim::KernelFault);
    }
  }
}

TEST_CASE("compaction: a position beyond the cache is detected") {
  const kernels::GatherShape shape{
      .rows = 1, .entry_bytes = 64, .capacity_from = 4, .capacity_to = 2, .kept = 2};
  Device device;
  Buffer<float> from{device, "from", draw(1, 64)};
  Buffer<std::int32_t> kept{device, "kept", std::vector<std::int32_t>{0, 4}};
  Buffer<float> to{device, "to", 32};
  CHECK_THROWS_AS(gather_entries<float>({&device}, shape, in(from), in(kept), out(to)),
                  cuda_sim::KernelFault);
}

}  // namespace
}  // namespace kvsim::on_sim
