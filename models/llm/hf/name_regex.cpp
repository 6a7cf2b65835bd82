#include "models/llm/hf/name_regex.hpp"

#include <algorithm>
#include <bitset>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvsim::hf {

namespace {

using Bytes = std::bitset<256>;
using Places = std::vector<std::size_t>;  // positions in a name, including its end, in order

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
    kSequence,   // `parts` in sequence
    kChoice,     // one of `parts`
    kRepeat,     // parts[0], `min` to `max` times
    kStart,      // the start of the name
    kEnd,        // its end
    kBoundary,   // a word boundary, or not if `negated`
    kLookahead,  // requires a match of parts[0] here, or no match if `negated`
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
      (void)take("?");        // lazy: the same names match
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
    if (is_word(c)) fail();  // backreferences and unknown escapes
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

/// Returns the union of `a` and `b`.
Places either(const Places& a, const Places& b) {
  Places out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

/// One name, and the cached results of its lookaheads: each is evaluated once per position.
class Match {
 public:
  explicit Match(std::string_view name) : name_{name} {}

  /// Returns the positions at which `node` may end if it begins at one of `from`.
  Places ends(const Node& node, const Places& from) {
    switch (node.kind) {
      case Kind::kBytes: {
        Places out;
        for (const std::size_t i : from) {
          if (i < name_.size() && node.bytes[static_cast<unsigned char>(name_[i])]) {
            out.push_back(i + 1);
          }
        }
        return out;
      }
      case Kind::kSequence: {
        Places out = from;
        for (auto part = node.parts.begin(); part != node.parts.end() && !out.empty(); ++part) {
          out = ends(*part, out);
        }
        return out;
      }
      case Kind::kChoice: {
        Places out;
        for (const Node& part : node.parts) out = either(out, ends(part, from));
        return out;
      }
      case Kind::kRepeat:
        return repeated(node, from);
      case Kind::kStart:
        return where(from, [](std::size_t i) { return i == 0; });
      case Kind::kEnd:
        return where(from, [&](std::size_t i) { return i == name_.size(); });
      case Kind::kBoundary:
        return where(from, [&](std::size_t i) {
          const bool before = i > 0 && is_word(name_[i - 1]);
          const bool after = i < name_.size() && is_word(name_[i]);
          return (before != after) != node.negated;
        });
      case Kind::kLookahead:
        return where(from, [&](std::size_t i) { return looks(node, i) != node.negated; });
    }
    return {};
  }

 private:
  template <class Holds>
  static Places where(const Places& from, Holds&& holds) {
    Places out;
    std::copy_if(from.begin(), from.end(), std::back_inserter(out), holds);
    return out;
  }

  Places repeated(const Node& node, const Places& from) {
    Places now = from;
    for (std::size_t i = 0; i < node.min && !now.empty(); ++i) now = ends(node.parts[0], now);
    Places out = now;
    for (std::size_t i = node.min; i < node.max && !now.empty(); ++i) {
      const Places one = ends(node.parts[0], now);
      now.clear();  // newly reached positions
      std::set_difference(one.begin(), one.end(), out.begin(), out.end(), std::back_inserter(now));
      out = either(out, now);
    }
    return out;
  }

  bool looks(const Node& node, std::size_t at) {
    const auto [known, is_new] = looked_.try_emplace({&node, at});
    if (is_new) known->second = !ends(node.parts[0], {at}).empty();
    return known->second;
  }

  std::string_view name_;
  std::map<std::pair<const Node*, std::size_t>, bool> looked_;
};

/// Returns the longest text that every match of `root` contains; empty if none is known.
std::string literal_of(const Node& root) {
  std::string longest, run;
  if (root.parts.size() != 1) return longest;  // a choice
  for (const Node& part : root.parts[0].parts) {
    if (part.kind == Kind::kBytes && part.bytes.count() == 1) {
      std::size_t byte = 0;
      while (!part.bytes[byte]) ++byte;
      run.push_back(static_cast<char>(byte));
    } else {
      run.clear();
    }
    if (run.size() > longest.size()) longest = run;
  }
  return longest;
}

}  // namespace

NameRegex::NameRegex(std::string_view pattern)
    : root_{std::make_shared<const Node>(Parser{pattern}.parse())}, literal_{literal_of(*root_)} {}

bool NameRegex::matches_start(std::string_view name) const {
  if (name.find(literal_) == std::string_view::npos) return false;  // most names
  return !Match{name}.ends(*root_, {0}).empty();
}

}  // namespace kvsim::hf
