#include "models/llm/hf/name_regex.hpp"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvsim::hf {

namespace {

using Bytes = std::bitset<256>;
using Places = std::vector<bool>;  // positions of a name, its end included

constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

Bytes where(bool (*holds)(char)) {
  Bytes out;
  for (std::size_t c = 0; c < out.size(); ++c) out[c] = holds(static_cast<char>(c));
  return out;
}

/// "\d", "\w", "\s" and their complements; nullopt: the character itself.
std::optional<Bytes> class_of(char letter) {
  switch (letter) {
    case 'd':
      return where([](char c) { return c >= '0' && c <= '9'; });
    case 'D':
      return ~*class_of('d');
    case 'w':
      return where(is_word);
    case 'W':
      return ~*class_of('w');
    case 's':
      return where([](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
    case 'S':
      return ~*class_of('s');
    default:
      return std::nullopt;
  }
}

}  // namespace

struct NameRegex::Node {
  enum class Kind : std::uint8_t {
    kBytes,      // one character of `bytes`
    kSequence,   // `parts` one after the other
    kChoice,     // one of `parts`
    kRepeat,     // parts[0], `min` to `max` times
    kStart,      // the start of the name
    kEnd,        // its end
    kBoundary,   // between a character of a word and another, or not if `negated`
    kLookahead,  // where parts[0] matches, or does not if `negated`
  };
  Kind kind = Kind::kSequence;
  Bytes bytes{};
  std::vector<Node> parts{};
  std::size_t min = 0, max = 0;
  bool negated = false;
};

namespace {

using Node = NameRegex::Node;
using Kind = Node::Kind;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_{text} {}

  Node parse() {
    Node out = choice(0);
    if (!done()) fail();
    return out;
  }

 private:
  [[noreturn]] static void fail() { throw std::invalid_argument{"regular expression"}; }
  [[nodiscard]] bool done() const { return at_ == text_.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : text_[at_]; }
  char next() {
    if (done()) fail();
    return text_[at_++];
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Node choice(std::size_t depth) {
    if (depth > kMaxDepth) fail();
    Node out{.kind = Kind::kChoice};
    do {
      out.parts.push_back(sequence(depth));
    } while (take("|"));
    return out;
  }

  Node sequence(std::size_t depth) {
    Node out{.kind = Kind::kSequence};
    while (!done() && peek() != '|' && peek() != ')') out.parts.push_back(repeated(depth));
    return out;
  }

  Node repeated(std::size_t depth) {
    Node one = atom(depth);
    for (std::size_t times = 0;; ++times) {
      std::size_t min = 0, max = kNoLimit;
      if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (!take("*") && !(peek() == '{' && bounds(min, max))) {
        return one;
      }
      if (times > 0) fail();  // "a**"
      (void)take("?");        // as few as possible: the same names match
      Node out{.kind = Kind::kRepeat, .min = min, .max = max};
      out.parts.push_back(std::move(one));
      one = std::move(out);
    }
  }

  std::optional<std::size_t> number() {
    const char* first = text_.data() + at_;
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    at_ += static_cast<std::size_t>(end - first);
    return value;
  }

  /// "{2}", "{2,}", "{,3}", "{2,3}"; false: the brace is a character.
  bool bounds(std::size_t& min, std::size_t& max) {
    const std::size_t before = at_;
    ++at_;
    const auto low = number();
    const bool comma = take(",");
    const auto high = comma ? number() : low;
    if (!take("}") || (!low && !high)) {
      at_ = before;
      return false;
    }
    min = low.value_or(0);
    max = high.value_or(kNoLimit);
    if (min > max || min > text_.size() + 1000) fail();
    return true;
  }

  static Node character(char c) {
    Node out{.kind = Kind::kBytes};
    out.bytes.set(static_cast<unsigned char>(c));
    return out;
  }

  Node atom(std::size_t depth) {
    const char c = next();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return {.kind = Kind::kBytes, .bytes = set()};
      case '.': {
        Node out{.kind = Kind::kBytes};
        out.bytes.set();
        out.bytes.reset('\n');
        return out;
      }
      case '^':
        return {.kind = Kind::kStart};
      case '$':
        return {.kind = Kind::kEnd};
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
        fail();
      default:
        return character(c);
    }
  }

  Node escape() {
    const char c = next();
    if (const auto known = class_of(c)) return {.kind = Kind::kBytes, .bytes = *known};
    if (c == 'b' || c == 'B') return {.kind = Kind::kBoundary, .negated = c == 'B'};
    if (c == 'A') return {.kind = Kind::kStart};
    if (c == 'Z') return {.kind = Kind::kEnd};
    if (is_word(c)) fail();  // backreferences and what is not known
    return character(c);
  }

  Node group(std::size_t depth) {
    Node out;
    if (take("?=") || take("?!")) {
      const bool negated = text_[at_ - 1] == '!';
      out = {.kind = Kind::kLookahead, .negated = negated};
      out.parts.push_back(choice(depth + 1));
    } else {
      if (take("?P<")) {
        while (next() != '>') {
        }
      } else if (!take("?:") && peek() == '?') {
        fail();
      }
      out = choice(depth + 1);
    }
    if (next() != ')') fail();
    return out;
  }

  Bytes set() {
    const bool negated = take("^");
    Bytes out;
    for (bool first = true; first || peek() != ']'; first = false) {
      char c = next();
      if (c == '\\') {
        c = next();
        if (const auto known = class_of(c)) {
          out |= *known;
          continue;
        }
      }
      auto low = static_cast<unsigned char>(c);
      auto high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = static_cast<unsigned char>(next());
        if (high == '\\') high = static_cast<unsigned char>(next());
        if (high < low) fail();
      }
      for (std::size_t b = low; b <= high; ++b) out.set(b);
    }
    ++at_;
    return negated ? ~out : out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool any(const Places& places) {
  return std::find(places.begin(), places.end(), true) != places.end();
}

/// One name, and what lookaheads found in it: each is evaluated once for a position.
class Match {
 public:
  explicit Match(std::string_view name) : name_{name} {}

  /// Where `node` may end if it begins at one of `from`.
  Places ends(const Node& node, const Places& from) {
    const std::size_t n = name_.size();
    Places out(n + 1, false);
    switch (node.kind) {
      case Kind::kBytes:
        for (std::size_t i = 0; i < n; ++i) {
          out[i + 1] = from[i] && node.bytes[static_cast<unsigned char>(name_[i])];
        }
        break;
      case Kind::kSequence:
        out = from;
        for (const Node& part : node.parts) out = ends(part, out);
        break;
      case Kind::kChoice:
        for (const Node& part : node.parts) {
          const Places one = ends(part, from);
          for (std::size_t i = 0; i <= n; ++i) out[i] = out[i] || one[i];
        }
        break;
      case Kind::kRepeat:
        out = repeated(node, from);
        break;
      case Kind::kStart:
        out[0] = from[0];
        break;
      case Kind::kEnd:
        out[n] = from[n];
        break;
      case Kind::kBoundary:
        for (std::size_t i = 0; i <= n; ++i) {
          const bool before = i > 0 && is_word(name_[i - 1]);
          const bool after = i < n && is_word(name_[i]);
          out[i] = from[i] && (before != after) != node.negated;
        }
        break;
      case Kind::kLookahead:
        for (std::size_t i = 0; i <= n; ++i) out[i] = from[i] && looks(node, i) != node.negated;
        break;
    }
    return out;
  }

 private:
  Places repeated(const Node& node, const Places& from) {
    Places now = from;
    for (std::size_t i = 0; i < node.min && any(now); ++i) now = ends(node.parts[0], now);
    Places out = now;
    for (std::size_t i = node.min; i < node.max && any(now); ++i) {
      const Places one = ends(node.parts[0], now);
      for (std::size_t p = 0; p < out.size(); ++p) {
        now[p] = one[p] && !out[p];  // what is new
        out[p] = out[p] || one[p];
      }
    }
    return out;
  }

  bool looks(const Node& node, std::size_t at) {
    auto& known = looked_[&node];
    known.resize(name_.size() + 1);
    if (!known[at]) {
      Places here(name_.size() + 1, false);
      here[at] = true;
      const bool found = any(ends(node.parts[0], here));
      looked_[&node][at] = found;
      return found;
    }
    return *known[at];
  }

  std::string_view name_;
  std::map<const Node*, std::vector<std::optional<bool>>> looked_;
};

}  // namespace

NameRegex::NameRegex(std::string_view pattern)
    : root_{std::make_shared<const Node>(Parser{pattern}.parse())} {}

bool NameRegex::matches_start(std::string_view name) const {
  Places from(name.size() + 1, false);
  from[0] = true;
  return any(Match{name}.ends(*root_, from));
}

}  // namespace kvsim::hf
