#include "traces/trace_metadata.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"

namespace kvsim {

const std::string* TraceMetadata::find(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  return found == file_.metadata().end() ? nullptr : &found->second;
}

std::string TraceMetadata::word(const std::string& key) const {
  const std::string* text = find(key);
  if (text == nullptr) throw InputError{fmt::format("{}: missing", place(key))};
  return *text;
}

std::int64_t TraceMetadata::integer(const std::string& key, std::int64_t low,
                                    std::int64_t high) const {
  const std::string text = word(key);
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw InputError{place(key), fmt::format("an integer in [{}, {}]", low, high), quoted(text)};
  }
  return value;
}

double TraceMetadata::positive(const std::string& key, double max) const {
  const std::string text = word(key);
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || !(value > 0 && value <= max)) {
    throw InputError{place(key), fmt::format("a number above 0, at most {:g}", max), quoted(text)};
  }
  return value;
}

std::string TraceMetadata::place(const std::string& key) const {
  return fmt::format("{}: __metadata__.{}", file_.place(), key);
}

std::string TraceMetadata::quoted(const std::string& text) {
  return fmt::format("\"{}\"", excerpt(text, 60));
}

void read_separators(const TraceMetadata& meta, TraceInfo& info) {
  const std::string* text = meta.find("separator_ids");
  if (text == nullptr) return;
  constexpr std::size_t kMaxSeparators = 10'000;
  const Field all = Field::parse(*text, meta.place("separator_ids"));
  for (const Field& each : all.items()) {
    info.separator_ids.push_back(static_cast<std::int32_t>(each.integer(0, INT32_MAX)));
  }
  if (info.separator_ids.size() > kMaxSeparators) {
    all.expected(fmt::format("at most {} token ids", kMaxSeparators));
  }
}

namespace {

void read_segments(const TraceMetadata& meta, const std::string& text, TraceInfo& info) {
  constexpr std::size_t kMaxSegments = 1000;
  constexpr std::size_t kLongestName = 64;
  const Field all = Field::parse(text, meta.place("segments"));
  std::int64_t end = 0;
  for (const Field& each : all.items()) {
    each.allow_only({"name", "start", "end"});
    TraceSegment segment{.name = each.at("name").string()};
    if (segment.name.empty() || segment.name.size() > kLongestName) {
      each.at("name").expected(fmt::format("1 to {} characters", kLongestName));
    }
    segment.start = each.at("start").integer(end, info.tokens - 1);
    segment.end = each.at("end").integer(segment.start + 1, info.tokens);
    end = segment.end;
    info.segments.push_back(std::move(segment));
    if (info.segments.size() > kMaxSegments) {
      all.expected(fmt::format("at most {} segments", kMaxSegments));
    }
  }
}

std::string text_of(const TraceSegment& segment) {
  return fmt::format("segment \"{}\" of tokens {}-{}", segment.name, segment.start, segment.end);
}

/// Returns the first segment of that name that starts in [low, high), or nullptr.
const TraceSegment* first_segment(const TraceInfo& info, std::string_view name, std::int64_t low,
                                  std::int64_t high) {
  const auto found =
      std::find_if(info.segments.begin(), info.segments.end(), [&](const TraceSegment& segment) {
        return segment.name == name && segment.start >= low && segment.start < high;
      });
  return found == info.segments.end() ? nullptr : &*found;
}

/// Derives marks that the metadata does not have. A mark is never token 0, which no token precedes.
void derive_marks(TraceInfo& info) {
  if (!info.question_start) {
    const auto* found = first_segment(info, "question", 1, info.answer_start.value_or(info.tokens));
    if (found != nullptr) info.question_start = found->start;
  }
  if (!info.answer_start) {
    const auto* found =
        first_segment(info, "answer", info.question_start.value_or(0) + 1, info.tokens);
    if (found != nullptr) info.answer_start = found->start;
  }
}

/// Rejects a mark that contradicts `segments`. Names of other parts are free.
void check_marks(const TraceMetadata& meta, const TraceInfo& info) {
  // Questions and answers before the mark may be examples in the context. After question_start, the
  // first answer is the one to which answer_start refers.
  const auto check = [&](const char* key, std::string_view name, std::int64_t mark,
                         const TraceSegment* named) {
    if (named != nullptr && named->start != mark) {
      throw InputError{
          meta.place(key),
          fmt::format("{}, where __metadata__.segments has \"{}\" start", named->start, name),
          std::to_string(mark)};
    }
    for (const TraceSegment& segment : info.segments) {
      const bool is_other =
          segment.name == "context" || segment.name == "question" || segment.name == "answer";
      if (!is_other || segment.name == name || mark < segment.start || mark >= segment.end)
        continue;
      throw InputError{
          meta.place(key),
          fmt::format("a token outside the {} of __metadata__.segments", text_of(segment)),
          std::to_string(mark)};
    }
  };
  if (info.question_start) {
    const std::int64_t mark = *info.question_start;
    const TraceSegment* at = first_segment(info, "question", mark, mark + 1);
    check("question_start", "question", mark,
          at != nullptr ? at : first_segment(info, "question", 0, info.tokens));
  }
  if (info.answer_start) {
    check("answer_start", "answer", *info.answer_start,
          first_segment(info, "answer", info.question_start.value_or(0), info.tokens));
  }
}

}  // namespace

void read_marks(const TraceMetadata& meta, TraceInfo& info) {
  if (meta.find("question_start") != nullptr) {
    info.question_start = meta.integer("question_start", 1, info.tokens - 1);
  }
  if (meta.find("answer_start") != nullptr) {
    info.answer_start =
        meta.integer("answer_start", info.question_start.value_or(0) + 1, info.tokens - 1);
  }
  if (const std::string* text = meta.find("segments")) {
    read_segments(meta, *text, info);
    derive_marks(info);
    check_marks(meta, info);
    return;
  }
  std::int64_t start = 0;
  for (const auto& [name, next] :
       {std::pair{"context", info.question_start}, std::pair{"question", info.answer_start}}) {
    if (!next) continue;
    info.segments.push_back({.name = name, .start = start, .end = *next});
    start = *next;
  }
  if (info.segments.empty()) return;
  info.segments.push_back(
      {.name = info.answer_start ? "answer" : "question", .start = start, .end = info.tokens});
}

}  // namespace kvsim
