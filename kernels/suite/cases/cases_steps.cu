// Cases of the kernels of a decode loop besides matrix products and attention.

#include <algorithm>
#include <cmath>

#include "kernels/decode/decode_steps.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::ProjectedShape;
using kernels::RowsShape;
using kernels::SlotShape;

/// Calls add(T{}) for each storage type.
template <class Add>
void for_types(Add add) {
  add(float{});
  add(kv::Half{});
  add(kv::BFloat16{});
}

template <class T>
void rotate_case(Bench& bench, const ProjectedShape& shape) {
  bench.add("batch " + text(shape.batch) + ", heads " + text(shape.n_heads) + "/" +
                text(shape.n_kv_heads) + "x" + text(shape.head_dim),
            Stored<T>::kName, [&](Case& c) {
              const std::int64_t d = shape.head_dim;
              const auto x = c.draw<T>(shape.batch * shape.width());
              std::vector<float> turns;
              for (std::int64_t j = 0; j < d; ++j) {
                const double angle = 0.7 * static_cast<double>(j % (d / 2) + 1);
                turns.push_back(static_cast<float>(j < d / 2 ? std::cos(angle) : std::sin(angle)));
              }
              const std::int64_t of_stored = shape.batch * shape.n_kv_heads * d;
              auto& q = c.output<T>("q", shape.batch * shape.n_heads * d);
              auto& keys = c.output<T>("keys", of_stored);
              auto& values = c.output<T>("values", of_stored);
              c.run(rotate_traffic(shape, sizeof(T)),
                    [=, from = c.numbers<T>("projected", x).span(),
                     at_step = c.numbers<float>("turns", turns).span(), to_q = q.span(),
                     to_keys = keys.span(), to_values = values.span()](Stream s) {
                      split_and_rotate<T>(s, shape, from, at_step, to_q, to_keys, to_values);
                    });
              std::vector<double> expected_q;
              std::vector<double> expected_keys;
              std::vector<float> expected_values;
              const std::int64_t heads = shape.n_heads + 2 * shape.n_kv_heads;
              for (std::int64_t i = 0; i < shape.batch * shape.width(); ++i) {
                const std::int64_t head = i / d % heads;
                const std::int64_t j = i % d;
                if (head >= shape.n_heads + shape.n_kv_heads) {
                  expected_values.push_back(x[at(i)]);
                  continue;
                }
                const std::int64_t pair = j % (d / 2);
                const auto cosine = static_cast<double>(turns[at(pair)]);
                const auto sine = static_cast<double>(turns[at(d / 2 + pair)]);
                const auto first = static_cast<double>(x[at(i - j + pair)]);
                const auto second = static_cast<double>(x[at(i - j + pair + d / 2)]);
                const double turned =
                    j < d / 2 ? first * cosine - second * sine : second * cosine + first * sine;
                (head < shape.n_heads ? expected_q : expected_keys).push_back(turned);
              }
              const double allowed = 2 * Stored<T>::kRounding + 1e-6;
              c.compare("q", values_of(q.download(0, std::ssize(expected_q))), expected_q, allowed);
              c.compare("keys", values_of(keys.download(0, of_stored)), expected_keys, allowed);
              c.compare_exactly("values", values_of(values.download(0, of_stored)),
                                expected_values);
            });
}

template <class T>
void gate_case(Bench& bench, const RowsShape& shape) {
  bench.add(text(shape.rows) + " rows of " + text(shape.width), Stored<T>::kName, [&](Case& c) {
    const auto both = c.draw<T>(2 * shape.rows * shape.width, -4, 4);
    auto& out = c.output<T>("out", shape.rows * shape.width);
    c.run(gate_traffic(shape, sizeof(T)),
          [=, from = c.numbers<T>("gate and up", both).span(), to = out.span()](Stream s) {
            gate_product<T>(s, shape, from, to);
          });
    std::vector<double> expected;
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const std::int64_t from = i / shape.width * 2 * shape.width + i % shape.width;
      const auto gate = static_cast<double>(both[at(from)]);
      expected.push_back(gate / (1 + std::exp(-gate)) *
                         static_cast<double>(both[at(from + shape.width)]));
    }
    c.compare("out", values_of(out.download(0, shape.rows * shape.width)), expected,
              Stored<T>::kRounding + 1e-6);
  });
}

template <class T>
void add_case(Bench& bench, std::int64_t n) {
  bench.add(text(n) + " numbers", Stored<T>::kName, [&](Case& c) {
    const auto x = c.draw<T>(n);
    const auto y = c.draw<T>(n);
    auto& to = c.numbers<T>("to", y);
    c.run(kernels::add_traffic(n, sizeof(T)),
          [=, from = c.numbers<T>("x", x).span(), sum = to.span()](Stream s) {
            add_rows<T>(s, n, from, sum);
          });
    std::vector<double> expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected.push_back(static_cast<double>(x[i]) + static_cast<double>(y[i]));
    }
    c.compare("to", values_of(to.download(0, n)), expected, Stored<T>::kRounding + 1e-7);
  });
}

void open_case(Bench& bench, const SlotShape& shape, bool chosen, bool kept) {
  bench.add(text(shape.rows) + " rows of " + text(shape.capacity) +
                (chosen ? ", slots of victims" : ", one slot") + (kept ? ", position, score" : ""),
            "int64", [&](Case& c) {
              constexpr std::int32_t kPosition = 4711;
              const std::int64_t n = shape.rows * shape.capacity;
              std::vector<std::int32_t> victims;
              for (std::int64_t r = 0; chosen && r < shape.rows; ++r) {
                victims.push_back(static_cast<std::int32_t>((5 * r + 2) % shape.capacity));
              }
              auto scores = kept ? c.draw(n) : std::vector<float>{};
              std::vector<std::int32_t> positions(kept ? at(n) : 0, 7);
              auto& slots = c.output<std::int64_t>("slots", shape.rows);
              auto& all_scores = c.numbers<float>("scores", scores);
              auto& all_positions = c.input("positions", positions);
              const OpenSlots arguments{.victims = c.input("victims", victims).span(),
                                        .slot = static_cast<std::int32_t>(shape.capacity - 1),
                                        .position = kPosition,
                                        .slots = slots.span(),
                                        .positions = all_positions.span(),
                                        .scores = all_scores.span()};
              c.run(open_slots_traffic(shape, chosen, kept),
                    [=](Stream s) { open_slots(s, shape, arguments); });
              std::vector<std::int64_t> expected;
              for (std::int64_t r = 0; r < shape.rows; ++r) {
                const std::int64_t slot = chosen ? victims[at(r)] : shape.capacity - 1;
                expected.push_back(r * shape.capacity + slot);
                if (!kept) continue;
                positions[at(expected.back())] = kPosition;
                scores[at(expected.back())] = 0;
              }
              c.compare_exactly("slots", slots.download(0, shape.rows), expected);
              if (!kept) return;
              c.compare_exactly("positions", all_positions.download(0, n), positions);
              c.compare_exactly("scores", all_scores.download(0, n), scores);
            });
}

void choose_case(Bench& bench, std::int64_t rows, std::int64_t entries, std::int32_t pinned,
                 std::int32_t recent) {
  const SlotShape shape{.rows = rows, .capacity = (entries + 3) / 4 * 4};
  bench.add(
      text(rows) + " rows of " + text(entries) + ", " + text(pinned) + " pinned, " + text(recent) +
          " recent",
      "fp32", [&](Case& c) {
        const std::int64_t n = rows * shape.capacity;
        auto scores = c.draw(n);
        for (float& x : scores) x = std::trunc(x * 8) / 8;  // some are equal
        std::vector<std::int32_t> positions;                // as in a ring: the newest may be
                                                            // anywhere
        for (std::int64_t i = 0; i < n; ++i) {
          positions.push_back(
              static_cast<std::int32_t>((i % shape.capacity + 3 * (i / shape.capacity)) % entries));
        }
        auto& victims = c.output<std::int32_t>("victims", rows);
        const ChooseVictims arguments{.entries = entries,
                                      .pinned = pinned,
                                      .first_recent = static_cast<std::int32_t>(entries - recent),
                                      .scores = c.numbers<float>("scores", scores).span(),
                                      .positions = c.input("positions", positions).span(),
                                      .victims = victims.span()};
        c.run(kernels::choose_victims_traffic(rows, entries, pinned),
              [=](Stream s) { choose_victims(s, shape, arguments); });
        std::vector<std::int32_t> expected;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::int64_t min = -1;
          for (std::int64_t e = pinned; e < entries; ++e) {
            const std::int64_t i = r * shape.capacity + e;
            if (positions[at(i)] >= entries - recent) continue;
            if (min < 0 || scores[at(i)] < scores[at(r * shape.capacity + min)]) {
              min = e;
            }
          }
          expected.push_back(static_cast<std::int32_t>(min));
        }
        c.compare_exactly("victims", victims.download(0, rows), expected);
      });
}

void bias_case(Bench& bench, const SlotShape& shape, std::int64_t slots) {
  bench.add(text(shape.rows) + " rows, " + text(slots) + " slots", "fp32", [&](Case& c) {
    constexpr float kAlpha = 0.75F;
    std::vector<std::int32_t> counts;
    for (std::int64_t i = 0; i < shape.rows * slots; ++i) {
      counts.push_back(static_cast<std::int32_t>(1 + 7 * i % 1000));
    }
    const auto before = c.draw(shape.rows * shape.capacity);
    auto& bias = c.numbers<float>("bias", before);
    c.run(kernels::count_bias_traffic(shape.rows, slots),
          [=, from = c.input("counts", counts).span(), to = bias.span()](Stream s) {
            count_bias(s, shape, slots, kAlpha, from, to);
          });
    std::vector<double> expected{before.begin(), before.end()};
    for (std::int64_t i = 0; i < shape.rows * slots; ++i) {
      expected[at(i / slots * shape.capacity + i % slots)] =
          static_cast<double>(kAlpha) * std::log(static_cast<double>(counts[at(i)]));
    }
    c.compare("bias", bias.download(0, shape.rows * shape.capacity), expected, 1e-6);
  });
}

/// The finaliser of splitmix64 over key and index, as a number in (0, 1).
double unit_of(std::uint64_t key, std::int64_t i) {
  std::uint64_t z = key + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  z ^= z >> 31U;
  return (static_cast<double>(z >> 40U) + 0.5) * 0x1p-24;
}

template <class T>
void fill_case(Bench& bench, std::int64_t n) {
  bench.add(text(n) + " numbers", Stored<T>::kName, [&](Case& c) {
    constexpr std::uint64_t kKey = 0x1234'5678'9ABC'DEF0ULL;
    constexpr float kLow = -3;
    constexpr float kHigh = 1;
    auto& to = c.output<T>("to", n);
    c.run(kernels::fill_traffic(n, sizeof(T)),
          [=, out = to.span()](Stream s) { fill_random<T>(s, kKey, kLow, kHigh, out); });
    std::vector<double> expected;
    for (std::int64_t i = 0; i < n; ++i) {
      expected.push_back(static_cast<double>(kLow) +
                         static_cast<double>(kHigh - kLow) * unit_of(kKey, i));
    }
    c.compare("to", values_of(to.download(0, n)), expected, Stored<T>::kRounding + 1e-6);
  });
}

template <class T>
void copy_case(Bench& bench, std::int64_t n) {
  bench.add(text(n) + " numbers", Stored<T>::kName, [&](Case& c) {
    const auto x = c.draw<T>(n);
    auto& to = c.output<T>("to", n);
    c.run(kernels::copy_values_traffic(n, sizeof(T)),
          [=, from = c.numbers<T>("from", x).span(), out = to.span()](Stream s) {
            copy_values<T>(s, from, out);
          });
    c.compare_exactly("to", values_of(to.download(0, n)), x);
  });
}

}  // namespace

void rotate_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    rotate_case<T>(bench, {.batch = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16});
    rotate_case<T>(bench, {.batch = 3, .n_heads = 6, .n_kv_heads = 2, .head_dim = 64});
    rotate_case<T>(bench, {.batch = 31, .n_heads = 4, .n_kv_heads = 4, .head_dim = 128});
  });
  if (bench.large()) {
    rotate_case<kv::BFloat16>(bench,
                              {.batch = 512, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128});
  }
}

void gate_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t width : {8, 264, 1032}) gate_case<T>(bench, {3, width});
  });
  if (bench.large()) gate_case<kv::BFloat16>(bench, {512, 14'336});
}

void add_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t n : {8, 264, 4104}) add_case<T>(bench, n);
  });
  if (bench.large()) add_case<kv::BFloat16>(bench, 4096 * 4096);
}

void open_slot_cases(Bench& bench) {
  for (const std::int64_t rows : {1, 31, 257}) {
    for (const bool chosen : {false, true}) {
      for (const bool kept : {false, true}) open_case(bench, {rows, 36}, chosen, kept);
    }
  }
}

void choose_victim_cases(Bench& bench) {
  for (const std::int64_t entries : {2, 31, 257, 1030}) {
    choose_case(bench, 3, entries, 0, 1);
    if (entries > 2) choose_case(bench, 31, entries, 5, 8);
  }
  if (bench.large()) choose_case(bench, 256, 16'384, 4, 1024);
}

void count_bias_cases(Bench& bench) {
  for (const std::int64_t rows : {1, 31, 257}) {
    for (const std::int64_t slots : {1, 8}) bias_case(bench, {rows, 36}, slots);
  }
}

void fill_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t n : {1, 31, 4100}) fill_case<T>(bench, n);
  });
}

void copy_value_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t n : {1, 31, 4100}) copy_case<T>(bench, n);
  });
}

}  // namespace kvsim::KVSIM_EXECUTOR
