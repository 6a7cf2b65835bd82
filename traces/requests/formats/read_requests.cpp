#include "traces/requests/formats/read_requests.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "traces/requests/formats/agentic_requests.hpp"
#include "traces/requests/formats/csv_requests.hpp"
#include "traces/requests/formats/json_requests.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/formats/servegen.hpp"
#include "traces/requests/formats/weka.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::array kFormats{
    RequestFormatName{RequestFormat::kPlain, "plain", "CSV arrival_s,prompt_tokens,output_tokens"},
    RequestFormatName{RequestFormat::kAzure, "azure",
                      "CSV TIMESTAMP,ContextTokens,GeneratedTokens"},
    RequestFormatName{RequestFormat::kMooncake, "mooncake",
                      "JSON lines of timestamp, input_length, output_length, hash_ids"},
    RequestFormatName{RequestFormat::kBurstGpt, "burstgpt",
                      "CSV Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"},
    RequestFormatName{RequestFormat::kShareGpt, "sharegpt", "JSON list of conversations"},
    RequestFormatName{RequestFormat::kServeGen, "servegen", "*-trace.csv with *-dataset.json"},
    RequestFormatName{RequestFormat::kVidur, "vidur",
                      "CSV arrived_at,num_prefill_tokens,num_decode_tokens"},
    RequestFormatName{RequestFormat::kSplitwise, "splitwise",
                      "CSV request_id,…,arrival_timestamp,batch_size,prompt_size,token_size"},
    RequestFormatName{RequestFormat::kWeka, "weka",
                      "JSON files of block_size, hash_id_scope, requests: one session each"},
    RequestFormatName{RequestFormat::kAgentic, "agentic",
                      "JSON lines of request_id or session_id, wait_for, delay, tool_wait_ms, …"},
    RequestFormatName{RequestFormat::kBailian, "bailian",
                      "JSON lines of chat_id, parent_chat_id, timestamp, turn, hash_ids"}};

bool names(std::string_view text, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) {
    return text.find(fmt::format("\"{}\"", key)) != std::string_view::npos;
  });
}

/// Detects the format of a text by its first line that is not blank; nullopt if it is unknown.
std::optional<RequestFormat> detect(std::string_view line) {
  const std::string_view text = trimmed(line);
  if (text.starts_with('[')) return RequestFormat::kShareGpt;
  if (text.starts_with('{')) {
    if (looks_like_weka(text)) return RequestFormat::kWeka;
    if (names(text, {"chat_id"})) return RequestFormat::kBailian;
    if (names(text, {"request_id", "session_id", "wait_for", "input_tokens", "delay", "schema"})) {
      return RequestFormat::kAgentic;
    }
    if (names(text, {"timestamp", "input_length", "output_length", "hash_ids"})) {
      return RequestFormat::kMooncake;
    }
    if (names(text, {"conversations", "messages", "items", "id"}) || text == "{") {
      return RequestFormat::kShareGpt;
    }
    return std::nullopt;
  }
  return csv_format_of(text);
}

RequestTrace parse_stream(std::istream& in, const std::string& name, const ReadOptions& options) {
  LineReader lines{in, name};
  std::string_view line;
  std::string first;
  while (first.empty() && lines.next(line)) {
    if (!trimmed(line).empty()) first = line;
  }
  if (first.empty()) throw InputError{name, "a request trace", "an empty file"};
  const auto format = options.format ? options.format : detect(first);
  if (!format) {
    check_text(first, lines.place());
    throw InputError{fmt::format("{}: {}", lines.place(), csv_header_complaint(first))};
  }
  switch (*format) {
    case RequestFormat::kMooncake:
      return read_mooncake(lines, std::move(first), options);
    case RequestFormat::kShareGpt:
      return read_sharegpt(lines, std::move(first), options);
    case RequestFormat::kAgentic:
      return read_agentic(lines, std::move(first), options);
    case RequestFormat::kBailian:
      return read_bailian(lines, std::move(first), options);
    case RequestFormat::kWeka: {
      std::string text = std::move(first);
      while (lines.next(line)) {
        text += '\n';
        text += line;
      }
      return parse_weka(text, name, options);
    }
    case RequestFormat::kServeGen:
      throw InputError{name, "the path of a ServeGen client's file or folder", "a text"};
    case RequestFormat::kPlain:
    case RequestFormat::kAzure:
    case RequestFormat::kBurstGpt:
    case RequestFormat::kVidur:
    case RequestFormat::kSplitwise:
      break;
  }
  return read_csv_requests(lines, first, *format, options);
}

}  // namespace

std::span<const RequestFormatName> request_formats() { return kFormats; }

std::string_view name_of(RequestFormat format) {
  return kFormats[static_cast<std::size_t>(format)].name;
}

RequestFormat parse_request_format(std::string_view word, std::string_view place) {
  std::vector<std::string> known;
  for (const RequestFormatName& row : kFormats) {
    if (row.name == word) return row.format;
    known.emplace_back(row.name);
  }
  throw InputError{fmt::format("{}: {}", place, unknown_name("format", word, known))};
}

RequestTrace read_requests(const fs::path& path, const ReadOptions& options) {
  if (!options.format || *options.format == RequestFormat::kWeka) {
    std::vector<fs::path> sessions = weka_files(path);
    std::error_code status;
    if (sessions.empty() && options.format && !fs::is_fifo(path, status)) {
      if (fs::is_directory(path, status)) {
        throw InputError{path.string(), "a folder with sessions as NAME.json", "one without"};
      }
      sessions.push_back(path);
    }
    if (!sessions.empty()) return read_weka(sessions, options);
  }
  if (options.format ? *options.format == RequestFormat::kServeGen : looks_like_servegen(path)) {
    return read_servegen(path, options);
  }
  if (std::error_code status; fs::is_fifo(path, status)) {
    constexpr std::size_t kMaxOfPipe = 1U << 30U;
    return parse_requests(read_text_file(path, kMaxOfPipe), path.string(), options);
  }
  expect_regular_file(path);
  std::ifstream in{path, std::ios::binary};
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  return parse_stream(in, path.string(), options);
}

RequestTrace read_requests(std::span<const fs::path> paths, const ReadOptions& options) {
  if (paths.size() == 1) return read_requests(paths.front(), options);
  std::vector<fs::path> sessions;
  for (const fs::path& path : paths) {
    std::vector<fs::path> files = weka_files(path);
    if (files.empty() && (!options.format || *options.format != RequestFormat::kWeka)) {
      (void)read_text_file(path, std::numeric_limits<std::size_t>::max());
      throw InputError{path.string(), "a session of agents (format weka), as one of several files",
                       "another format"};
    }
    if (files.empty()) files.push_back(path);
    sessions.insert(sessions.end(), files.begin(), files.end());
  }
  std::sort(sessions.begin(), sessions.end());
  for (std::size_t i = 1; i < sessions.size(); ++i) {
    if (sessions[i] == sessions[i - 1]) {
      throw InputError{sessions[i].string(), "each session once", "it twice"};
    }
  }
  return read_weka(sessions, options);
}

RequestTrace parse_requests(std::string_view text, std::string_view name,
                            const ReadOptions& options) {
  // The first line alone may not identify the format.
  if (!options.format && looks_like_weka(text)) return parse_weka(text, name, options);
  std::istringstream in{std::string{text}};
  return parse_stream(in, std::string{name}, options);
}

}  // namespace kvsim
