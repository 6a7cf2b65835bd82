#include "sim/memory/allocator_config.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/number_text.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kMinMb = 20;                     // kLargeBuffer
constexpr std::int64_t kMaxMb = std::int64_t{1} << 40;  // keeps MiB in bytes within int64

/// Words and the marks `: , [ ]` of a setting, without blanks between them.
struct Token {
  std::string_view text;
  std::size_t column = 1;
};

class ConfParser {
 public:
  ConfParser(std::string_view text, std::string_view place) : place_{place} {
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] == ' ' || text[at] == '\t') {
        ++at;
        continue;
      }
      const std::size_t end =
          is_mark(text[at]) ? at + 1 : std::min(text.find_first_of(":,[] \t", at), text.size());
      tokens_.push_back({text.substr(at, end - at), at + 1});
      at = end;
    }
    end_column_ = text.size() + 1;
  }

  AllocatorConfig parse() {
    while (next_ < tokens_.size()) {
      const Token key = word("a setting");
      mark(":");
      read(key);
      if (next_ < tokens_.size()) mark(",");
    }
    return config_;
  }

 private:
  static bool is_mark(char c) { return c == ':' || c == ',' || c == '[' || c == ']'; }

  [[noreturn]] void fail(const Token& at, std::string_view expected) const {
    throw InputError{fmt::format("{}: column {}", place_, at.column), expected,
                     at.text.empty() ? "the end" : fmt::format("\"{}\"", at.text)};
  }
  [[nodiscard]] Token peek() const {
    return next_ < tokens_.size() ? tokens_[next_] : Token{"", end_column_};
  }
  Token word(std::string_view what) {
    const Token token = peek();
    if (token.text.empty() || is_mark(token.text.front())) fail(token, what);
    ++next_;
    return token;
  }
  void mark(std::string_view wanted) {
    const Token token = peek();
    if (token.text != wanted) fail(token, fmt::format("\"{}\"", wanted));
    ++next_;
  }
  bool flag() {
    const Token token = word("True or False");
    if (token.text != "True" && token.text != "False") fail(token, "True or False");
    return token.text == "True";
  }
  template <class T>
  T number(T low, T high, std::string_view what) {
    const Token token = word(what);
    T value{};
    const char* end = token.text.data() + token.text.size();
    const auto [stop, error] = number_from_chars(token.text.data(), end, value);
    if (error != std::errc{} || stop != end || !(value >= low && value <= high)) fail(token, what);
    return value;
  }
  /// Reads a share above 0 and below `top`, or up to it.
  double share(bool with_one) {
    const Token token = peek();
    const auto value = number(0.0, 1.0, "a share of the memory");
    if (value == 0 || (value == 1 && !with_one)) {
      fail(token, with_one ? "a share in (0, 1]" : "a share in (0, 1)");
    }
    return value;
  }
  std::int64_t divisions() {
    const Token token = peek();
    const auto value = number<std::int64_t>(0, kMaxMb, "a power of two, or 0");
    if (value != 0 && !std::has_single_bit(static_cast<std::uint64_t>(value))) {
      fail(token, "a power of two, or 0");
    }
    return value;
  }

  void read(const Token& key) {
    const std::vector<std::string> known{"backend",
                                         "expandable_segments",
                                         "garbage_collection_threshold",
                                         "graph_capture_record_stream_reuse",
                                         "max_non_split_rounding_mb",
                                         "max_split_size_mb",
                                         "per_process_memory_fraction",
                                         "pinned_num_register_threads",
                                         "pinned_reserve_segment_size_mb",
                                         "pinned_use_background_threads",
                                         "pinned_use_cuda_host_register",
                                         "release_lock_on_cudamalloc",
                                         "roundup_power2_divisions"};
    if (key.text == "max_split_size_mb") {
      config_.max_split_size = megabytes();
    } else if (key.text == "max_non_split_rounding_mb") {
      config_.max_non_split_rounding = megabytes();
    } else if (key.text == "expandable_segments") {
      config_.expandable_segments = flag();
    } else if (key.text == "garbage_collection_threshold") {
      config_.garbage_collection_threshold = share(false);
    } else if (key.text == "per_process_memory_fraction") {
      config_.memory_fraction = share(true);
    } else if (key.text == "roundup_power2_divisions") {
      read_divisions();
    } else if (key.text == "backend") {
      const Token backend = word("native");
      if (backend.text != "native") fail(backend, "native, the only backend that is modelled");
    } else if (std::find(known.begin(), known.end(), key.text) != known.end()) {
      if (key.text.ends_with("threads") && !key.text.ends_with("background_threads")) {
        (void)number<std::int64_t>(1, kMaxMb, "a number of threads");
      } else if (key.text.ends_with("_mb")) {
        (void)number<std::int64_t>(1, kMaxMb, "a number of MiB");
      } else {
        (void)flag();
      }
    } else {
      throw InputError{fmt::format("{}: column {}: {}", place_, key.column,
                                   unknown_name("setting", key.text, known))};
    }
  }

  Bytes megabytes() {
    return Bytes{number<std::int64_t>(kMinMb, kMaxMb, "a number of MiB of at least 20") * kMiB};
  }

  /// Reads "4" for all sizes, or "[256:1,512:2,>:8]": by size in MiB; sizes below the first key use
  /// its value.
  void read_divisions() {
    auto& by_interval = config_.roundup_power2_divisions;
    if (peek().text != "[") {
      by_interval.fill(divisions());
      return;
    }
    mark("[");
    std::size_t last = 0;
    for (bool first = true;; first = false) {
      const Token size = peek();
      if (size.text == ">") {
        (void)word("a size");
        mark(":");
        std::fill(by_interval.begin() + static_cast<std::ptrdiff_t>(last), by_interval.end(),
                  divisions());
      } else {
        const auto mb = static_cast<std::uint64_t>(
            number<std::int64_t>(1, kMaxMb, "a power of two in MiB, or >"));
        if (!std::has_single_bit(mb)) fail(size, "a power of two in MiB, or >");
        const std::size_t at = std::min<std::size_t>(
            static_cast<std::size_t>(std::bit_width(mb)) - 1, AllocatorConfig::kIntervals - 1);
        mark(":");
        const std::int64_t value = divisions();
        if (first)
          std::fill(by_interval.begin(), by_interval.begin() + static_cast<std::ptrdiff_t>(at),
                    value);
        by_interval[at] = value;
        last = at;
      }
      if (peek().text != ",") break;
      mark(",");
    }
    mark("]");
  }

  std::string_view place_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  std::size_t end_column_ = 1;
  AllocatorConfig config_;
};

}  // namespace

AllocatorConfig parse_alloc_conf(std::string_view text, std::string_view place) {
  return ConfParser{text, place}.parse();
}

std::int64_t rounded_size(const AllocatorConfig& config, std::int64_t size) {
  if (size < kMinBlock) return kMinBlock;
  const auto bits = static_cast<std::uint64_t>(size);
  const int above_mib = static_cast<int>(std::bit_width(bits)) - 1 - 20;
  const auto interval = static_cast<std::size_t>(
      std::clamp<int>(above_mib, 0, static_cast<int>(AllocatorConfig::kIntervals) - 1));
  const std::int64_t divisions = config.roundup_power2_divisions[interval];
  if (divisions <= 1 || size <= kMinBlock * divisions) {
    return (size + kMinBlock - 1) / kMinBlock * kMinBlock;
  }
  if (std::has_single_bit(bits)) return size;
  const auto step = static_cast<std::int64_t>(std::bit_floor(bits)) / divisions;
  return (size + step - 1) / step * step;
}

}  // namespace kvsim
