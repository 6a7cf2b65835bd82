#include <algorithm>

#include "kernels/merge/retention.hpp"
#include "kernels/reference.hpp"
#include "kernels/score/scores.hpp"
#include "kernels/select/compact.hpp"
#include "kernels/select/select.hpp"
#include "kernels/suite/cases/cases.hpp"
#include "models/math/attention/attention_profile.hpp"
#include "models/math/log_add.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

std::int64_t padded(std::int64_t n) { return (n + 3) / 4 * 4; }

/// Calls add(entries) for each length of the suite.
template <class Add>
void for_lengths(const Bench& bench, Add add) {
  for (const std::int64_t entries : {1, 31, 257, 1030}) add(entries);
  if (bench.large()) add(131'072);
}
std::int64_t rows_of(const Bench& bench) { return bench.large() ? 256 : 3; }

std::string shape_text(std::int64_t rows, std::int64_t entries) {
  return text(rows) + " rows of " + text(entries);
}
/// Formats with two decimals.
std::string text_of(float x) {
  const auto hundredths = static_cast<std::int64_t>(std::lround(100 * std::abs(x)));
  const std::string last = text(hundredths % 100);
  return (x < 0 ? "-" : "") + text(hundredths / 100) + "." + (last.size() < 2 ? "0" : "") + last;
}

}  // namespace

void update_scores_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    for (const std::int64_t group : {1, 4}) {
      const kernels::ScoreShape shape{.rows = rows_of(bench),
                                      .group = group,
                                      .entries = entries,
                                      .stride = padded(entries) + 4};
      const float decay = group == 1 ? 1.0F : 0.9F;  // accumulates; forgets
      bench.add(shape_text(shape.rows, entries) + ", group " + text(group) +
                    (decay < 1 ? ", decayed" : ""),
                "fp32", [&](Case& c) {
                  const auto p = c.draw(shape.rows * group * shape.stride, 0, 1);
                  const auto before = c.draw(shape.rows * shape.stride, 0, 10);
                  const auto probabilities = c.numbers<float>("probabilities", p).span();
                  auto& scores = c.numbers<float>("scores", before);
                  c.run(update_scores_traffic(shape), [=, to = scores.span()](Stream s) {
                    update_scores(s, shape, decay, probabilities, to);
                  });
                  c.compare("scores", download_rows(scores, shape.rows, shape.stride, entries),
                            update_scores_reference(shape, static_cast<double>(decay), p, before),
                            1e-6);
                });
    }
  });
}

void log_average_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    const kernels::ScoreShape shape{
        .rows = rows_of(bench), .group = 4, .entries = entries, .stride = padded(entries)};
    bench.add(shape_text(shape.rows, entries) + ", group 4", "fp32", [&](Case& c) {
      constexpr float kKeep = 0.9F;
      const auto x = c.draw(shape.rows * shape.group * shape.stride, -60, 60);  // e^60 squared
      auto before = c.draw(shape.rows * shape.stride, -60, 60);                 // overflows fp32
      before[0] = -HUGE_VALF;                                                   // no sample yet
      const auto logits = c.numbers<float>("logits", x).span();
      auto& average = c.numbers<float>("log_average", before);
      c.run(log_average_traffic(shape), [=, to = average.span()](Stream s) {
        update_log_average(s, shape, kKeep, logits, to);
      });
      std::vector<double> expected;
      for (std::int64_t i = 0; i < shape.rows * entries; ++i) {
        const std::int64_t row = i / entries;
        const std::int64_t e = i % entries;
        double sample = kLogOfZero;
        for (std::int64_t g = 0; g < shape.group; ++g) {
          sample = log_add(sample,
                           static_cast<double>(x[at((row * shape.group + g) * shape.stride + e)]));
        }
        const auto keep = static_cast<double>(kKeep);
        expected.push_back(
            log_add(std::log(keep) + static_cast<double>(before[at(row * shape.stride + e)]),
                    std::log1p(-keep) + sample - std::log(static_cast<double>(shape.group))));
      }
      c.compare("log_average", download_rows(average, shape.rows, shape.stride, entries), expected,
                1e-6);
    });
  });
}

void fuse_window_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    for (const bool maximum : {false, true}) {
      const kernels::WindowShape shape{.scores = {.rows = bench.large() ? 32 : 3,
                                                  .group = 4,
                                                  .entries = entries,
                                                  .stride = padded(entries)},
                                       .window = 8};
      const kernels::ScoreShape& s = shape.scores;
      bench.add(
          shape_text(s.rows, entries) + (maximum ? ", max of 8" : ", sum of 8"), "fp32",
          [&](Case& c) {
            constexpr std::int64_t kSlot = 5;
            const auto p = c.draw(s.rows * s.group * s.stride, 0, 1);
            auto past = c.draw(s.rows * shape.window * s.stride, 0, 1);
            const auto probabilities = c.numbers<float>("probabilities", p).span();
            auto& ring = c.numbers<float>("ring", past);
            auto& fused = c.output<float>("fused", s.rows * s.stride);
            c.run(fuse_window_traffic(shape),
                  [=, all = ring.span(), to = fused.span()](Stream stream) {
                    fuse_window(stream, shape, kSlot, maximum, probabilities, all, to);
                  });
            std::vector<double> expected;
            for (std::int64_t i = 0; i < s.rows * entries; ++i) {
              const std::int64_t row = i / entries;
              const std::int64_t e = i % entries;
              double newest = 0;
              for (std::int64_t g = 0; g < s.group; ++g) {
                newest += static_cast<double>(p[at((row * s.group + g) * s.stride + e)]);
              }
              past[at((row * shape.window + kSlot) * s.stride + e)] = static_cast<float>(newest);
            }
            for (std::int64_t row = 0; row < s.rows; ++row) {
              AttentionProfile profile{static_cast<std::int32_t>(shape.window),
                                       ProfileSpace::kProbability, maximum};
              std::vector<std::int32_t> columns;
              for (std::int64_t e = 0; e < entries; ++e) columns.push_back(profile.add_column());
              for (std::int64_t w = 0; w < shape.window; ++w) {
                profile.next_row();
                for (std::int64_t e = 0; e < entries; ++e) {
                  profile.write(
                      columns[at(e)],
                      static_cast<double>(past[at((row * shape.window + w) * s.stride + e)]));
                }
              }
              std::vector<double> of_row;
              profile.fuse(columns, of_row);
              expected.insert(expected.end(), of_row.begin(), of_row.end());
            }
            c.compare("fused", download_rows(fused, s.rows, s.stride, entries), expected, 1e-6);
            c.compare("ring", ring.download(0, s.rows * shape.window * s.stride), past, 1e-6);
          });
    }
  });
}

void argmin_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    const kernels::SelectShape shape{
        .rows = rows_of(bench), .entries = entries, .stride = padded(entries)};
    bench.add(shape_text(shape.rows, entries), "fp32", [&](Case& c) {
      const auto x = c.draw(shape.rows * shape.stride);
      const auto scores = c.numbers<float>("scores", x).span();
      auto& position = c.output<std::int64_t>("position", shape.rows);
      c.run(argmin_traffic(shape),
            [=, to = position.span()](Stream s) { argmin_rows(s, shape, scores, to); });
      c.compare_exactly("position", position.download(0, shape.rows), argmin_reference(shape, x));
    });
  });
}

void top_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    const std::int64_t kept = kernels::ceil_div(entries, 5);
    const kernels::SelectShape shape{
        .rows = rows_of(bench), .entries = entries, .stride = padded(entries), .keep = kept};
    bench.add(shape_text(shape.rows, entries) + ", keeps " + text(kept), "fp32", [&](Case& c) {
      auto x = c.draw(shape.rows * shape.stride);
      for (float& score : x) score = std::trunc(score * 64) / 64;  // some are equal
      const auto scores = c.numbers<float>("scores", x).span();
      auto& positions = c.output<std::int32_t>("kept", shape.rows * kept);
      c.run(top_traffic(shape),
            [=, to = positions.span()](Stream s) { top_rows(s, shape, scores, to); });
      c.compare_exactly("kept", positions.download(0, shape.rows * kept), top_reference(shape, x));
    });
  });
}

void threshold_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    const kernels::SelectShape shape{
        .rows = rows_of(bench), .entries = entries, .stride = padded(entries)};
    for (const float threshold : {-2.0F, 0.25F, 2.0F}) {  // all stay, some stay, none stay
      if (entries > 10'000 && threshold != 0.25F) continue;
      bench.add(shape_text(shape.rows, entries) + ", from " + text_of(threshold), "fp32",
                [&](Case& c) {
                  auto x = c.draw(shape.rows * shape.stride);
                  for (float& score : x) score = std::trunc(score * 64) / 64;  // some are equal
                  std::vector<std::int32_t> expected;
                  std::vector<std::int32_t> n_expected;
                  for (std::int64_t r = 0; r < shape.rows; ++r) {
                    const std::size_t before = expected.size();
                    for (std::int64_t e = 0; e < entries; ++e) {
                      if (x[at(r * shape.stride + e)] >= threshold) {
                        expected.push_back(static_cast<std::int32_t>(e));
                      }
                    }
                    n_expected.push_back(static_cast<std::int32_t>(expected.size() - before));
                  }
                  auto& kept = c.output<std::int32_t>("kept", shape.rows * entries);
                  auto& counts = c.output<std::int32_t>("counts", shape.rows);
                  c.run(threshold_traffic(shape, std::ssize(expected)),
                        [=, scores = c.numbers<float>("scores", x).span(), to = kept.span(),
                         n = counts.span()](Stream s) {
                          threshold_rows(s, shape, threshold, scores, to, n);
                        });
                  std::vector<std::int32_t> got;
                  for (std::int64_t r = 0; r < shape.rows; ++r) {
                    const auto row = kept.download(r * entries, n_expected[at(r)]);
                    got.insert(got.end(), row.begin(), row.end());
                  }
                  c.compare_exactly("counts", counts.download(0, shape.rows), n_expected);
                  c.compare_exactly("kept", got, expected);
                });
    }
  });
}

void retain_cases(Bench& bench) {
  for_lengths(bench, [&](std::int64_t entries) {
    for (const bool near_end : {false, true}) {
      const kernels::SelectShape shape{
          .rows = rows_of(bench), .entries = entries, .stride = padded(entries)};
      const std::int64_t room = near_end ? kernels::ceil_div(entries, 40) : entries;
      bench.add(shape_text(shape.rows, entries) + (near_end ? ", nearest" : ", farthest") +
                    ", room " + text(room),
                "fp32", [&](Case& c) {
                  constexpr float kGamma = 0.05F;
                  const auto x = c.draw(shape.rows * shape.stride, 0, 1);
                  std::vector<std::int32_t> places;
                  std::vector<std::int32_t> expected;
                  std::vector<std::int32_t> n_expected;
                  for (std::int64_t r = 0; r < shape.rows; ++r) {
                    const auto row = x.begin() + r * shape.stride;
                    const auto [low, high] = std::minmax_element(row, row + entries);
                    const float reach = kGamma * (*high - *low);
                    std::int32_t n = 0;
                    for (std::int64_t e = 0; e < entries; ++e) {
                      const bool stays =
                          n < room && (near_end ? row[e] < *low + reach : row[e] > *high - reach);
                      places.push_back(stays ? static_cast<std::int32_t>(r * room) + n : -1);
                      if (!stays) continue;
                      expected.push_back(static_cast<std::int32_t>(e));
                      ++n;
                    }
                    n_expected.push_back(n);
                  }
                  auto& kept = c.output<std::int32_t>("kept", shape.rows * room);
                  auto& retained_at =
                      c.output<std::int32_t>("retained_at", shape.rows * shape.stride);
                  auto& counts = c.output<std::int32_t>("counts", shape.rows);
                  const RetainRows arguments{.distance = c.numbers<float>("distance", x).span(),
                                             .gamma = kGamma,
                                             .near_end = near_end,
                                             .room = room,
                                             .kept = kept.span(),
                                             .retained_at = retained_at.span(),
                                             .counts = counts.span()};
                  c.run(retain_traffic(shape, std::ssize(expected)),
                        [=](Stream s) { retain_rows(s, shape, arguments); });
                  std::vector<std::int32_t> got;
                  for (std::int64_t r = 0; r < shape.rows; ++r) {
                    const auto row = kept.download(r * room, n_expected[at(r)]);
                    got.insert(got.end(), row.begin(), row.end());
                  }
                  c.compare_exactly("counts", counts.download(0, shape.rows), n_expected);
                  c.compare_exactly("kept", got, expected);
                  c.compare_exactly("retained_at",
                                    download_rows(retained_at, shape.rows, shape.stride, entries),
                                    places);
                });
    }
  });
}

namespace {

template <class T>
void gather_case(Bench& bench, std::int64_t held, std::int64_t kept) {
  constexpr std::int64_t kHeadDim = 128;
  const kernels::GatherShape shape{.rows = rows_of(bench),
                                   .entry_bytes = kHeadDim * static_cast<std::int64_t>(sizeof(T)),
                                   .capacity_from = held,
                                   .capacity_to = kept + 2,
                                   .kept = kept};
  bench.add(shape_text(shape.rows, held) + ", keeps " + text(kept), Stored<T>::kName, [&](Case& c) {
    const auto values = c.draw<T>(shape.rows * held * kHeadDim);
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < shape.rows * kept; ++i) {
      positions.push_back(static_cast<std::int32_t>(i % kept * held / kept));
    }
    const auto from = c.numbers<T>("from", values).span();
    const auto which = c.input("kept", positions).span();
    auto& moved = c.output<T>("to", shape.rows * shape.capacity_to * kHeadDim);
    c.run(gather_traffic(shape),
          [=, to = moved.span()](Stream s) { gather_entries<T>(s, shape, from, which, to); });
    std::vector<float> expected;
    for (std::int64_t i = 0; i < shape.rows * kept; ++i) {
      const std::int64_t first = (i / kept * held + positions[at(i)]) * kHeadDim;
      expected.insert(expected.end(), values.begin() + first, values.begin() + first + kHeadDim);
    }
    c.compare_exactly(
        "to",
        values_of(download_rows(moved, shape.rows, shape.capacity_to * kHeadDim, kept * kHeadDim)),
        expected);
  });
}

}  // namespace

void gather_cases(Bench& bench) {
  for (const auto& [held, kept] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {257, 31}}) {
    gather_case<float>(bench, held, kept);
    gather_case<kv::Half>(bench, held, kept);
    gather_case<kv::BFloat16>(bench, held, kept);
  }
  if (bench.large()) gather_case<kv::BFloat16>(bench, 16'384, 3277);
}

}  // namespace kvsim::KVSIM_EXECUTOR
