#include <numeric>

#include "kernels/basic/bandwidth.hpp"
#include "tests/kernels/kernel_run.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT
using kernels::BandwidthShape;

TEST_CASE("bandwidth: read, write, copy and triad of any length move the bytes of the formulas") {
  for (const std::int64_t n : {1, 3, 4, 31, 257, 5000}) {
    for (const std::int64_t blocks : {1, 3}) {
      INFO("n ", n, " blocks ", blocks);
      const BandwidthShape shape{.n = n, .blocks = blocks};
      const auto x = draw(1, n);
      const auto y = draw(2, n);
      {
        Device device;
        Buffer<float> a{device, "in", x};
        Buffer<float> sums{device, "sums", blocks};
        stream_read({&device}, shape, in(a), out(sums));
        const auto s = sums.download();
        const double total = std::accumulate(s.begin(), s.end(), 0.0);
        CHECK(std::abs(total - std::accumulate(x.begin(), x.end(), 0.0)) <
              1e-6 * static_cast<double>(n));
        check_traffic(device.counters(), read_traffic(shape));
      }
      {
        Device device;
        Buffer<float> to{device, "out", n};
        stream_write({&device}, shape, 2.5F, out(to));
        CHECK(to.download() == std::vector<float>(static_cast<std::size_t>(n), 2.5F));
        check_traffic(device.counters(), write_traffic(shape));
      }
      {
        Device device;
        Buffer<float> a{device, "in", x};
        Buffer<float> to{device, "out", n};
        stream_copy({&device}, shape, in(a), out(to));
        CHECK(to.download() == x);
        check_traffic(device.counters(), copy_traffic(shape));
        // Each sector is read once and written once at any length.
        CHECK(device.counters().load_sectors == kernels::ceil_div(n, 8) + (n % 8 > 4 ? 1 : 0));
      }
      {
        Device device;
        Buffer<float> a{device, "a", x};
        Buffer<float> b{device, "b", y};
        Buffer<float> to{device, "out", n};
        stream_triad({&device}, shape, in(a), in(b), 3.0F, out(to));
        std::vector<double> expected;
        for (std::size_t i = 0; i < x.size(); ++i) {
          expected.push_back(static_cast<double>(x[i]) + 3.0 * static_cast<double>(y[i]));
        }
        CHECK(max_error(to.download(), expected) < 2 * kRounding<float>);
        check_traffic(device.counters(), triad_traffic(shape));
        CHECK(device.counters().flops == 2 * n);
      }
    }
  }
}

TEST_CASE("bandwidth: spans shorter than the shape are refused") {
  Device device;
  Buffer<float> a{device, "in", draw(1, 16)};
  Buffer<float> to{device, "out", 15};
  CHECK_THROWS(stream_copy({&device}, {.n = 16, .blocks = 1}, in(a), out(to)));
  CHECK_THROWS(stream_copy({&device}, {.n = 0, .blocks = 1}, in(a), out(to)));
  CHECK_THROWS(stream_read({&device}, {.n = 15, .blocks = 16}, in(a), out(to)));
}

}  // namespace
}  // namespace kvsim::on_sim
