#include "models/launch/shell_words.hpp"

#include <cctype>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kPlain = "%+,-./:=@_";
constexpr std::string_view kOperators = ";|&<>()`";

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kPlain.find(c) != std::string_view::npos;
}

/// Reads one command line and keeps track of the position.
class Splitter {
 public:
  Splitter(std::string_view text, std::string_view place) : text_{text}, place_{place} {}

  std::vector<std::string> words() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\'') {
        single_quotes();
      } else if (c == '"') {
        double_quotes();
      } else if (c == '\\') {
        backslash();
      } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
        end_word();
        ++at_;
      } else if (c == '#' && !in_word_) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        refuse_special(c);
        take(c);
      }
    }
    end_word();
    return std::move(words_);
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw InputError{fmt::format("{}: character {}: {}", place_, at + 1, what)};
  }
  void refuse_special(char c) const {
    if (c == '$') fail(at_, "expected literal words, got $: replace the variable by its value");
    if (kOperators.find(c) != std::string_view::npos) {
      fail(at_,
           fmt::format("expected one command, got \"{}\"; quote it if it is part of a word", c));
    }
  }
  void take(char c) {
    word_ += c;
    in_word_ = true;
    ++at_;
  }
  void end_word() {
    if (in_word_) words_.push_back(std::move(word_));
    word_.clear();
    in_word_ = false;
  }
  void single_quotes() {
    const std::size_t end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) fail(at_, "expected a closing ' of this quote");
    word_ += text_.substr(at_ + 1, end - at_ - 1);
    in_word_ = true;
    at_ = end + 1;
  }
  void double_quotes() {
    const std::size_t begin = at_++;
    in_word_ = true;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_];
      if (c == '$' || c == '`') refuse_special(c);
      const bool escapes =
          c == '\\' && at_ + 1 < text_.size() &&
          std::string_view{"\"\\$`\n"}.find(text_[at_ + 1]) != std::string_view::npos;
      if (escapes) {
        if (text_[at_ + 1] != '\n') word_ += text_[at_ + 1];
        at_ += 2;
      } else {
        word_ += c;
        ++at_;
      }
    }
    if (at_ == text_.size()) fail(begin, "expected a closing \" of this quote");
    ++at_;
  }
  void backslash() {
    if (at_ + 1 == text_.size()) fail(at_, "expected a character after the backslash");
    ++at_;
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    if (text_[at_] == '\n') {
      ++at_;
    } else {
      take(text_[at_]);
    }
  }

  std::string_view text_, place_;
  std::size_t at_ = 0;
  std::string word_;
  bool in_word_ = false;
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> split_shell_words(std::string_view text, std::string_view place) {
  return Splitter{text, place}.words();
}

std::string quoted_for_shell(std::string_view word) {
  bool plain = !word.empty();
  for (const char c : word) plain = plain && is_plain(c);
  if (plain) return std::string{word};
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shell_command(std::span<const std::string> words, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t i = 0; i < words.size();) {
    // An option and its values.
    std::string part = quoted_for_shell(words[i++]);
    const bool is_option = part.starts_with('-');
    while (is_option && i < words.size() && !words[i].starts_with('-')) {
      part += " " + quoted_for_shell(words[i++]);
    }
    const bool breaks = width > 0 && column > 0 && column + 1 + part.size() + 2 > width;
    if (breaks) {
      out += " \\\n    ";
      column = 4;
    } else if (!out.empty()) {
      out += " ";
      ++column;
    }
    out += part;
    column += part.size();
  }
  return out;
}

}  // namespace kvsim
