// Copies over the host link and by pages. The kernels are those of compact.hpp and copies.hpp; only
// the location of their memory and the size of an entry differ.

#include <algorithm>

#include "kernels/basic/copies.hpp"
#include "kernels/select/compact.hpp"
#include "kernels/select/lazy_pages.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::GatherShape;

/// Adds a case that copies `kept` of `held` pages per row, from the host if `of_host`.
void page_case(Bench& bench, const GatherShape& shape, const std::string& words, bool of_host) {
  bench.add(words, "bf16", [&](Case& c) {
    using T = kv::BFloat16;
    const std::int64_t width = shape.entry_bytes / static_cast<std::int64_t>(sizeof(T));
    const auto values = c.draw<T>(shape.rows * shape.capacity_from * width);
    std::vector<std::int32_t> pages;
    for (std::int64_t i = 0; i < shape.rows * shape.kept; ++i) {
      pages.push_back(static_cast<std::int32_t>(i % shape.kept * shape.capacity_from / shape.kept));
    }
    const auto stored = store_all<T>(values);
    const Span<const T> from =
        of_host ? c.host_input("from", stored).span() : c.input("from", stored).span();
    const auto which = c.input("pages", pages).span();
    auto& moved = c.output<T>("to", shape.rows * shape.capacity_to * width);
    c.run(gather_traffic(shape),
          [=, to = moved.span()](Stream s) { gather_entries<T>(s, shape, from, which, to); });
    std::vector<float> expected;
    for (std::int64_t i = 0; i < shape.rows * shape.kept; ++i) {
      const std::int64_t first = (i / shape.kept * shape.capacity_from + pages[at(i)]) * width;
      expected.insert(expected.end(), values.begin() + first, values.begin() + first + width);
    }
    c.compare_exactly(
        "to",
        values_of(download_rows(moved, shape.rows, shape.capacity_to * width, shape.kept * width)),
        expected);
  });
}

GatherShape pages_of(std::int64_t rows, std::int64_t page_bytes, std::int64_t held,
                     std::int64_t kept) {
  return {.rows = rows,
          .entry_bytes = page_bytes,
          .capacity_from = held,
          .capacity_to = kept,
          .kept = kept};
}

}  // namespace

void gather_page_cases(Bench& bench) {
  for (const std::int64_t tokens : {8, 16, 64}) {  // for a head of 128 channels of 16 bits
    const auto shape = bench.large() ? pages_of(32, tokens * 256, 32'768 / tokens, 8192 / tokens)
                                     : pages_of(2, tokens * 256, 7, 3);
    page_case(bench, shape,
              text(shape.kept) + " of " + text(shape.capacity_from) + " pages of " + text(tokens) +
                  " tokens, " + text(shape.rows) + " rows",
              false);
  }
}

void fetch_cases(Bench& bench) {
  for (const std::int64_t kib : {4, 16, 64}) {
    if (!bench.large() && kib == 64) continue;
    const auto shape = bench.large() ? pages_of(8, kib * 1024, 65'536 / kib, 8192 / kib)
                                     : pages_of(1, kib * 1024, 5, 2);
    page_case(bench, shape,
              text(shape.kept) + " of " + text(shape.capacity_from) + " host pages of " +
                  text(kib) + " KiB, " + text(shape.rows) + " rows",
              true);
  }
}

void offload_cases(Bench& bench) {
  for (const std::int64_t rows : {1, 31, 257}) {
    constexpr std::int64_t kWidth = 128;
    constexpr std::int64_t kCapacity = 5;
    const kernels::AppendShape shape{
        .rows = rows, .entry_bytes = 2 * kWidth, .slots = rows * kCapacity};
    bench.add(text(rows) + " entries into host memory", "bf16", [&](Case& c) {
      using T = kv::BFloat16;
      auto cache = c.draw<T>(shape.slots * kWidth);
      const auto entries = c.draw<T>(rows * kWidth);
      std::vector<std::int64_t> slots;
      for (std::int64_t r = 0; r < rows; ++r) {
        slots.push_back(r * kCapacity + (3 * r + 1) % kCapacity);
      }
      auto& to = c.host_input("to", store_all<T>(cache));
      const auto fresh = c.numbers<T>("fresh", entries).span();
      const auto which = c.input("slots", slots).span();
      c.run(append_traffic(shape),
            [=, out = to.span()](Stream s) { append_entries<T>(s, shape, fresh, which, out); });
      for (std::int64_t i = 0; i < rows * kWidth; ++i) {
        cache[at(slots[at(i / kWidth)] * kWidth + i % kWidth)] = entries[at(i)];
      }
      c.compare_exactly("to", values_of(to.download(0, shape.slots * kWidth)), cache);
    });
  }
}

void lazy_page_cases(Bench& bench) {
  for (const std::int64_t rows : {1, 3, 31}) {
    constexpr std::int64_t kPages = 5;
    for (const std::int64_t page : {8, 16, 64}) {
      const kernels::LazyPageShape shape{.rows = rows,
                                         .max_leaving = 2 * page + 3,
                                         .page = page,
                                         .pages_per_sequence = kPages,
                                         .n_pages = rows * kPages};
      bench.add(text(rows) + " rows of " + text(kPages) + " pages of " + text(page), "fp32",
                [&](Case& c) {
                  // One or two pages become empty; in every third row one entry stays on such a
                  // page.
                  std::vector<std::int32_t> table;
                  std::vector<std::int32_t> leaving;
                  std::vector<std::int32_t> live(at(shape.n_pages),
                                                 static_cast<std::int32_t>(page));
                  std::vector<float> bias(at(rows * kPages * page), 0.0F);
                  for (std::int64_t r = 0; r < rows; ++r) {
                    for (std::int64_t p = 0; p < kPages; ++p) {
                      table.push_back(static_cast<std::int32_t>((p * rows + rows - 1 - r)));
                    }
                    for (std::int64_t i = 0; i < shape.max_leaving; ++i) {
                      const std::int64_t entry = (i + page / 2) % (kPages * page);
                      const bool none = r % 3 == 2 && i == page;
                      leaving.push_back(none ? -1 : static_cast<std::int32_t>(entry));
                    }
                  }
                  std::vector<std::int32_t> expected_live = live;
                  std::vector<float> expected_bias = bias;
                  std::vector<std::int32_t> expected;
                  std::int64_t left = 0;
                  for (std::int64_t i = 0; i < std::ssize(leaving); ++i) {
                    const std::int32_t entry = leaving[at(i)];
                    if (entry < 0) continue;
                    ++left;
                    const std::int64_t row = i / shape.max_leaving;
                    expected_bias[at(row * kPages * page + entry)] =
                        -std::numeric_limits<float>::infinity();
                    const std::int32_t of = table[at(row * kPages + entry / page)];
                    if (--expected_live[at(of)] == 0) expected.push_back(of);
                  }
                  auto& counts = c.input("live", live);
                  auto& biases = c.numbers<float>("bias", bias);
                  auto& freed = c.output<std::int32_t>("freed", shape.n_pages);
                  auto& n_freed = c.input("n_freed", std::vector<std::int32_t>{0});
                  const LazyPages arguments{.leaving = c.input("leaving", leaving).span(),
                                            .pages = c.input("pages", table).span(),
                                            .live = counts.span(),
                                            .bias = biases.span(),
                                            .freed = freed.span(),
                                            .n_freed = n_freed.span()};
                  c.run(lazy_page_traffic(shape, left, std::ssize(expected)),
                        [=](Stream s) { evict_lazily(s, shape, arguments); });
                  c.compare_exactly("live", counts.download(0, shape.n_pages), expected_live);
                  c.compare_exactly("bias", biases.download(0, std::ssize(bias)), expected_bias);
                  c.compare_exactly(
                      "n_freed", n_freed.download(0, 1),
                      std::vector<std::int32_t>{static_cast<std::int32_t>(expected.size())});
                  auto got = freed.download(0, std::ssize(expected));
                  std::sort(got.begin(), got.end());
                  std::sort(expected.begin(), expected.end());
                  c.compare_exactly("freed", got, expected);
                });
    }
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
