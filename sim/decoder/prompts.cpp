#include "sim/decoder/prompts.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

std::vector<std::int32_t> ids_of(const Field& field, std::int64_t vocab) {
  std::vector<std::int32_t> ids;
  for (const Field& id : field.items()) {
    ids.push_back(static_cast<std::int32_t>(id.integer(0, vocab - 1)));
  }
  if (ids.empty()) field.expected("at least one token");
  return ids;
}

LoopPrompt prompt_of(const Field& line, std::int64_t vocab, std::int64_t max_tokens) {
  line.allow_only({"tokens", "answer", "task", "question_start", "chunks"});
  LoopPrompt out{.task = line.has("task") ? line.at("task").string() : "",
                 .tokens = ids_of(line.at("tokens"), vocab),
                 .answer = ids_of(line.at("answer"), vocab),
                 .question_start = {},
                 .chunks = {}};
  const auto length = static_cast<std::int64_t>(out.tokens.size() + out.answer.size());
  if (out.tokens.size() < 2) line.at("tokens").expected("at least two tokens");
  if (length > max_tokens) {
    line.fail(
        fmt::format("expected at most {} tokens with the answer, got {}", max_tokens, length));
  }
  if (const auto start = line.find("question_start")) {
    out.question_start = start->integer(1, static_cast<std::int64_t>(out.tokens.size()) - 1);
  }
  if (const auto chunks = line.find("chunks")) {
    const auto last = static_cast<std::int64_t>(out.tokens.size()) - 1;
    const std::int64_t end = out.question_start.value_or(last);
    for (const Field& start : chunks->items()) {
      const std::int64_t min = out.chunks.empty() ? 0 : out.chunks.back() + 1;
      out.chunks.push_back(start.integer(min, out.chunks.empty() ? 0 : end - 1));
    }
    if (out.chunks.empty()) chunks->expected("at least one chunk");
  }
  return out;
}

}  // namespace

std::vector<LoopPrompt> read_prompts(const std::filesystem::path& file, std::int64_t vocab,
                                     std::int64_t max_tokens) {
  const std::string text = read_text_file(file, kMaxBytes);
  std::vector<LoopPrompt> prompts;
  std::size_t begin = 0;
  for (std::int64_t n = 1; begin < text.size(); ++n) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view{text}.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    prompts.push_back(
        prompt_of(Field::parse(line, fmt::format("{}:{}", file.string(), n)), vocab, max_tokens));
  }
  if (prompts.empty()) {
    throw InputError{fmt::format("{}: expected a prompt per line, got none", file.string())};
  }
  return prompts;
}

}  // namespace kvsim
