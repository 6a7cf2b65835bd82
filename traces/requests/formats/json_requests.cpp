#include "traces/requests/formats/json_requests.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/units_format.hpp"
#include "traces/requests/formats/context_ids.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kMooncakeBlock = 512;
constexpr std::int32_t kContextBlock = 64;
constexpr std::size_t kLongestConversation = 64U << 20U;

/// Same as Field::parse, with a hint at the probable cause if a line is truncated.
Field parse_record(std::string_view text, const LineReader& lines, const std::string& place) {
  check_text(text, place);
  try {
    return Field::parse(text, place);
  } catch (const InputError& error) {
    if (lines.ended()) throw;
    throw InputError{fmt::format("{}; the file ends within this record", error.what())};
  }
}

SimTime milliseconds(const Field& field) {
  constexpr std::int64_t kMax = kLongestTrace * 1000;
  const double value = field.number(0, static_cast<double>(kMax));
  const double whole = std::floor(value);
  return SimTime{static_cast<std::int64_t>(whole) * 1'000'000'000 +
                 std::llround((value - whole) * 1e9)};
}

std::int32_t tokens(const Field& field, std::int64_t low) {
  return static_cast<std::int32_t>(field.integer(low, kMaxTokens));
}

/// Reads the texts of conversations one after another, independent of line breaks.
class Conversations {
 public:
  Conversations(LineReader& lines, std::string first) : lines_{lines}, line_{std::move(first)} {}

  /// Reads the next text and "FILE:LINE" of its start; false at the end. Errors: InputError for
  /// text that is neither a list nor an object, and for one that does not end.
  bool next(std::string& text, std::string& place) {
    text.clear();
    for (;;) {
      at_ = std::min(line_.find_first_not_of(" \t\r", at_), line_.size());
      if (at_ == line_.size()) {
        if (!advance()) break;
        continue;
      }
      const char c = line_[at_];
      if (c == '{') {
        place = lines_.place();
        take_object(text, place);
        after_one_ = true;
        return true;
      }
      const bool opens = c == '[' && !opened_ && !after_one_;
      const bool separates = c == ',' && opened_ && !closed_ && after_one_;
      const bool closes = c == ']' && opened_ && !closed_;
      if (!opens && !separates && !closes) {
        throw InputError{lines_.place(), "a list of conversations",
                         fmt::format("{} at column {}", in_quotes(line_.substr(at_, 20)), at_ + 1)};
      }
      opened_ = opened_ || opens;
      closed_ = closed_ || closes;
      ++at_;
    }
    if (opened_ && !closed_) {
      throw InputError{lines_.place(), "\"]\" after the last conversation", "the end of the file"};
    }
    return false;
  }

 private:
  bool advance() {
    std::string_view line;
    if (!lines_.next(line)) return false;
    line_ = line;
    at_ = 0;
    return true;
  }
  void take_object(std::string& text, const std::string& place) {
    int depth = 0;
    bool in_string = false;
    for (;;) {
      const std::size_t begin = at_;
      bool escaped = false;  // strings do not continue across line ends
      for (; at_ < line_.size(); ++at_) {
        const char c = line_[at_];
        if (in_string) {
          if (escaped)
            escaped = false;
          else if (c == '\\')
            escaped = true;
          else if (c == '"')
            in_string = false;
        } else if (c == '"') {
          in_string = true;
        } else if (c == '{') {
          ++depth;
        } else if (c == '}' && --depth == 0) {
          ++at_;
          text.append(line_, begin, at_ - begin);
          return;
        }
      }
      text.append(line_, begin, at_ - begin);
      text += '\n';
      if (text.size() > kLongestConversation) {
        throw InputError{place, "a conversation of at most 64 MiB", "a longer one"};
      }
      if (!advance()) throw InputError{place, "a complete conversation", "the end of the file"};
    }
  }

  LineReader& lines_;
  std::string line_;
  std::size_t at_ = 0;
  bool opened_ = false, closed_ = false, after_one_ = false;
};

/// Returns the single member of `object` that has any of `names`.
Field any_of(const Field& object, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (object.has(name)) return object.at(name);
  }
  return object.at(*names.begin());
}

enum class Role : std::uint8_t { kUser, kModel };

Role role_of(const Field& turn) {
  static const std::vector<std::string> user{"human", "user", "system", "tool"};
  static const std::vector<std::string> words{"human", "user",      "system",  "tool", "gpt",
                                              "bard",  "assistant", "chatgpt", "bing", "model"};
  const std::string word = any_of(turn, {"from", "role"}).choice(words);
  return std::find(user.begin(), user.end(), word) != user.end() ? Role::kUser : Role::kModel;
}

std::int64_t words_in(std::string_view text) {
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
    if (!blank && !inside) ++words;
    inside = !blank;
  }
  return words;
}

/// Returns the number of code points in UTF-8 text.
std::int64_t characters_in(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::int64_t turn_tokens(const Field& turn, const ReadOptions& options) {
  for (const std::string_view name : {"tokens", "num_tokens"}) {
    if (turn.has(name)) return turn.at(name).integer(0, kMaxTokens);
  }
  if (!options.chars_per_token && !options.tokens_per_word) {
    turn.fail(
        "expected a count \"tokens\" or \"num_tokens\": no tokenizer is available; set "
        "\"chars_per_token\" or \"tokens_per_word\" to estimate lengths from the text");
  }
  const std::string text = any_of(turn, {"value", "content"}).string();
  const double estimate = options.chars_per_token
                              ? static_cast<double>(characters_in(text)) / *options.chars_per_token
                              : static_cast<double>(words_in(text)) * *options.tokens_per_word;
  if (estimate > kMaxTokens) {
    turn.fail(fmt::format("expected at most {} tokens, got {:.0f}", kMaxTokens, estimate));
  }
  return static_cast<std::int64_t>(std::ceil(estimate));
}

struct Turn {
  std::int32_t prompt, output;
};

/// Returns the requests of one conversation: one per answer, with all preceding text as its prompt.
std::vector<Turn> turns_of(const Field& conversation, const ReadOptions& options,
                           std::int64_t& unanswered) {
  std::vector<Turn> turns;
  std::int64_t context = 0;
  bool awaits_answer = false;
  for (const Field& turn : any_of(conversation, {"conversations", "messages", "items"}).items()) {
    const Role role = role_of(turn);
    const std::int64_t length = turn_tokens(turn, options);
    if (role == Role::kModel && awaits_answer && context > 0) {
      turns.push_back({static_cast<std::int32_t>(context), static_cast<std::int32_t>(length)});
      awaits_answer = false;
    }
    context += length;
    if (context > kMaxTokens) {
      turn.fail(
          fmt::format("expected a context of at most {} tokens, got {}", kMaxTokens, context));
    }
    if (role == Role::kUser) awaits_answer = true;
  }
  if (awaits_answer) ++unanswered;
  return turns;
}

}  // namespace

RequestTrace read_mooncake(LineReader& lines, std::string first, const ReadOptions& options) {
  RequestSink sink{lines.name(), RequestFormat::kMooncake, options};
  const std::int32_t block = options.prefix_block.value_or(kMooncakeBlock);
  const auto place = [&] { return lines.place(); };
  std::string_view line = first;
  do {
    if (trimmed(line).empty()) continue;
    sink.record([&] {
      const Field record = parse_record(line, lines, lines.place());
      sink.note_other_keys(record, {"timestamp", "input_length", "output_length", "hash_ids"});
      Request r;
      r.arrival = milliseconds(record.at("timestamp"));
      r.prompt_tokens = tokens(record.at("input_length"), 1);
      r.output_tokens = tokens(record.at("output_length"), 0);
      if (const auto ids = record.find("hash_ids")) {
        auto& all = sink.trace().prefix_ids;
        r.prefix_first = static_cast<std::int32_t>(all.size());
        for (const Field& id : ids->items()) {
          all.push_back(
              static_cast<std::uint64_t>(id.integer(0, std::numeric_limits<std::int64_t>::max())));
        }
        check_prefix_room(sink.trace(), 0);
        r.prefix_count = static_cast<std::int32_t>(all.size()) - r.prefix_first;
        const std::int32_t blocks = (r.prompt_tokens + block - 1) / block;
        if (r.prefix_count != blocks) {
          ids->expected(fmt::format("{} ids, one for each block of {} tokens", blocks, block));
        }
      }
      sink.add(r, place);
    });
  } while (lines.next(line));
  if (!sink.trace().prefix_ids.empty()) sink.trace().prefix_block = block;
  return sink.finish(false);
}

RequestTrace read_sharegpt(LineReader& lines, std::string first, const ReadOptions& options) {
  RequestSink sink{lines.name(), RequestFormat::kShareGpt, options};
  sink.trace().conversations = true;
  ContextIds ids{sink.trace(), options.prefix_block.value_or(kContextBlock)};
  Conversations conversations{lines, std::move(first)};
  std::int64_t unanswered = 0;
  std::int64_t empty = 0;
  std::int32_t session = 0;
  std::string text;
  std::string place;
  while (conversations.next(text, place)) {
    std::vector<Turn> turns;
    sink.record([&] { turns = turns_of(parse_record(text, lines, place), options, unanswered); });
    if (turns.empty()) {
      ++empty;
      continue;
    }
    std::vector<std::uint64_t> blocks;
    std::int32_t before = -1;
    for (const Turn& turn : turns) {
      Request r;
      r.prompt_tokens = turn.prompt;
      r.output_tokens = turn.output;
      r.session = session;
      r.after = before;
      ids.turn(r, blocks);
      before = static_cast<std::int32_t>(sink.trace().requests.size());
      sink.add(r, [&] { return place; });
    }
    ++session;
  }
  RequestTrace& trace = sink.trace();
  empty -= trace.skipped;
  if (empty > 0) {
    trace.notes.push_back(
        fmt::format("{} conversations without an answered turn were left out", with_commas(empty)));
  }
  if (unanswered > 0) {
    trace.notes.push_back(
        fmt::format("last turns without an answer were left out in {} "
                    "conversations",
                    with_commas(unanswered)));
  }
  if (options.chars_per_token || options.tokens_per_word) {
    trace.notes.push_back(options.chars_per_token
                              ? fmt::format("lengths are estimated at {:g} characters per token",
                                            *options.chars_per_token)
                              : fmt::format("lengths are estimated at {:g} tokens per word",
                                            *options.tokens_per_word));
  }
  trace.notes.emplace_back(
      "the format has no times: every conversation begins at 0 unless \"arrivals\" are given");
  return sink.finish(false);
}

}  // namespace kvsim
