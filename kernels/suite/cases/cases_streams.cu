#include <numeric>

#include "kernels/basic/bandwidth.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::BandwidthShape;

/// Calls add(shape, words) for each size of the suite.
template <class Add>
void for_sizes(const Bench& bench, Add add) {
  for (const std::int64_t n : {1, 31, 257, 5000}) {
    add(BandwidthShape{.n = n, .blocks = 3}, text(n) + " numbers");
  }
  if (!bench.large()) return;
  for (const std::int64_t mib : {4, 64, 1024}) {  // within the L2 cache, and beyond it
    add(BandwidthShape{.n = mib << 18, .blocks = 2112}, text(mib) + " MiB");
  }
}

}  // namespace

void stream_read_cases(Bench& bench) {
  for_sizes(bench, [&](const BandwidthShape& shape, const std::string& words) {
    bench.add(words, "fp32", [&](Case& c) {
      const auto x = c.draw(shape.n, 0, 1);
      const auto from = c.numbers<float>("in", x).span();
      auto& sums = c.output<float>("sums", shape.blocks);
      c.run(read_traffic(shape),
            [=, to = sums.span()](Stream s) { stream_read(s, shape, from, to); });
      const auto got = sums.download(0, shape.blocks);
      const std::vector<double> total{std::accumulate(got.begin(), got.end(), 0.0)};
      c.compare("the sum", total, std::vector<double>{std::accumulate(x.begin(), x.end(), 0.0)},
                1e-4);
    });
  });
}

void stream_write_cases(Bench& bench) {
  for_sizes(bench, [&](const BandwidthShape& shape, const std::string& words) {
    bench.add(words, "fp32", [&](Case& c) {
      auto& out = c.output<float>("out", shape.n);
      c.run(write_traffic(shape),
            [=, to = out.span()](Stream s) { stream_write(s, shape, 2.5F, to); });
      c.compare_exactly("out", out.download(0, shape.n), std::vector<float>(at(shape.n), 2.5F));
    });
  });
}

void stream_copy_cases(Bench& bench) {
  for_sizes(bench, [&](const BandwidthShape& shape, const std::string& words) {
    bench.add(words, "fp32", [&](Case& c) {
      const auto x = c.draw(shape.n);
      const auto from = c.numbers<float>("in", x).span();
      auto& out = c.output<float>("out", shape.n);
      c.run(copy_traffic(shape),
            [=, to = out.span()](Stream s) { stream_copy(s, shape, from, to); });
      c.compare_exactly("out", out.download(0, shape.n), x);
    });
  });
}

void stream_triad_cases(Bench& bench) {
  for_sizes(bench, [&](const BandwidthShape& shape, const std::string& words) {
    bench.add(words, "fp32", [&](Case& c) {
      const auto x = c.draw(shape.n, 0, 1);  // nothing cancels
      const auto y = c.draw(shape.n, 0, 1);
      const auto a = c.numbers<float>("a", x).span();
      const auto b = c.numbers<float>("b", y).span();
      auto& out = c.output<float>("out", shape.n);
      c.run(triad_traffic(shape),
            [=, to = out.span()](Stream s) { stream_triad(s, shape, a, b, 3.0F, to); });
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected.push_back(static_cast<double>(x[i]) + 3.0 * static_cast<double>(y[i]));
      }
      c.compare("out", out.download(0, shape.n), expected, 2 * Stored<float>::kRounding);
    });
  });
}

}  // namespace kvsim::KVSIM_EXECUTOR
