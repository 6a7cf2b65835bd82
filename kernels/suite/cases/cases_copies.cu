#include "kernels/basic/copies.hpp"
#include "kernels/basic/rows.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

constexpr std::int64_t kWidth = 128;

/// Calls add(T{}) for each storage type.
template <class Add>
void for_types(Add add) {
  add(float{});
  add(kv::Half{});
  add(kv::BFloat16{});
}

template <class T>
void append_case(Bench& bench, std::int64_t rows, std::int64_t capacity) {
  const kernels::AppendShape shape{.rows = rows,
                                   .entry_bytes = kWidth * static_cast<std::int64_t>(sizeof(T)),
                                   .slots = rows * capacity};
  bench.add(text(rows) + " rows into rings of " + text(capacity), Stored<T>::kName, [&](Case& c) {
    auto cache = c.draw<T>(rows * capacity * kWidth);
    const auto entries = c.draw<T>(rows * kWidth);
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < rows; ++r) slots.push_back(r * capacity + (3 * r + 1) % capacity);
    auto& to = c.numbers<T>("to", cache);
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

template <class T>
void move_case(Bench& bench, std::int64_t moves, std::int64_t capacity) {
  const kernels::MoveShape shape{.moves = moves,
                                 .entry_bytes = kWidth * static_cast<std::int64_t>(sizeof(T)),
                                 .slots = moves * capacity};
  bench.add(text(moves) + " rows of " + text(capacity), Stored<T>::kName, [&](Case& c) {
    auto cache = c.draw<T>(shape.slots * kWidth);
    std::vector<std::int64_t> from;
    std::vector<std::int64_t> to;
    for (std::int64_t n = 0; n < moves; ++n) {
      from.push_back(n * capacity + (2 * n + 1) % capacity);
      to.push_back(n * capacity + (2 * n + 3) % capacity);
    }
    auto& all = c.numbers<T>("cache", cache);
    const auto sources = c.input("from", from).span();
    const auto targets = c.input("to", to).span();
    c.run(move_traffic(shape), [=, entries = all.span()](Stream s) {
      move_entries<T>(s, shape, sources, targets, entries);
    });
    for (std::int64_t i = 0; i < moves * kWidth; ++i) {
      cache[at(to[at(i / kWidth)] * kWidth + i % kWidth)] =
          cache[at(from[at(i / kWidth)] * kWidth + i % kWidth)];
    }
    c.compare_exactly("cache", values_of(all.download(0, shape.slots * kWidth)), cache);
  });
}

template <class T>
void concat_case(Bench& bench, std::int64_t rows, std::int64_t before) {
  const kernels::ConcatShape shape{
      .rows = rows, .entry_bytes = kWidth * static_cast<std::int64_t>(sizeof(T)), .before = before};
  bench.add(text(rows) + " rows of " + text(before), Stored<T>::kName, [&](Case& c) {
    const auto held = c.draw<T>(rows * before * kWidth);
    const auto entries = c.draw<T>(rows * kWidth);
    const auto old = c.numbers<T>("old", held).span();
    const auto fresh = c.numbers<T>("fresh", entries).span();
    auto& longer = c.output<T>("longer", rows * (before + 1) * kWidth);
    c.run(concat_traffic(shape),
          [=, out = longer.span()](Stream s) { concat_entries<T>(s, shape, old, fresh, out); });
    std::vector<float> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto begin = held.begin() + r * before * kWidth;
      expected.insert(expected.end(), begin, begin + before * kWidth);
      expected.insert(expected.end(), entries.begin() + r * kWidth,
                      entries.begin() + (r + 1) * kWidth);
    }
    c.compare_exactly("longer", values_of(longer.download(0, rows * (before + 1) * kWidth)),
                      expected);
  });
}

template <class T>
void softmax_case(Bench& bench, std::int64_t rows, std::int64_t width) {
  const kernels::RowsShape shape{.rows = rows, .width = width};
  bench.add(text(rows) + " rows of " + text(width), Stored<T>::kName, [&](Case& c) {
    const auto logits = c.draw<T>(rows * width, -8, 8);
    const auto from = c.numbers<T>("from", logits).span();
    auto& p = c.output<float>("to", rows * width);
    c.run(softmax_traffic(shape, sizeof(T), sizeof(float)),
          [=, to = p.span()](Stream s) { softmax_rows<T>(s, shape, from, to); });
    c.compare("to", p.download(0, rows * width), kernels::softmax_reference(shape, logits), 2e-6);
  });
}

template <class T>
void rms_norm_case(Bench& bench, std::int64_t rows, std::int64_t width) {
  const kernels::RowsShape shape{.rows = rows, .width = width};
  bench.add(text(rows) + " rows of " + text(width), Stored<T>::kName, [&](Case& c) {
    constexpr float kEpsilon = 1e-5F;
    const auto x = c.draw<T>(rows * width, -3, 3);
    const auto w = c.draw<T>(width, 0.5, 1.5);
    const auto from = c.numbers<T>("from", x).span();
    const auto weight = c.numbers<T>("weight", w).span();
    auto& y = c.output<T>("to", rows * width);
    c.run(rms_norm_traffic(shape, sizeof(T)),
          [=, to = y.span()](Stream s) { rms_norm_rows<T>(s, shape, kEpsilon, from, weight, to); });
    c.compare("to", values_of(y.download(0, rows * width)),
              kernels::rms_norm_reference(shape, static_cast<double>(kEpsilon), x, w),
              Stored<T>::kRounding + 1e-6);
  });
}

}  // namespace

void append_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t rows : {1, 31, 257}) append_case<T>(bench, rows, 5);
  });
}

void move_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t moves : {1, 31, 257}) move_case<T>(bench, moves, 5);
  });
}

void concat_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t before : {0, 1, 31, 257}) concat_case<T>(bench, 3, before);
  });
  if (bench.large()) concat_case<kv::BFloat16>(bench, 64, 16'383);
}

void softmax_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t width : {1, 31, 257, 1030}) softmax_case<T>(bench, 3, width);
  });
  if (bench.large()) softmax_case<kv::BFloat16>(bench, 1024, 32'768);
}

void rms_norm_cases(Bench& bench) {
  for_types([&](auto type) {
    using T = decltype(type);
    for (const std::int64_t width : {8, 264, 4096}) rms_norm_case<T>(bench, 3, width);
  });
  if (bench.large()) rms_norm_case<kv::BFloat16>(bench, 8192, 4096);
}

}  // namespace kvsim::KVSIM_EXECUTOR
