#include "sim/report/chart/gnuplot.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/report/chart/figure_document.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Outcome {
  bool found = true;
  bool timed_out = false;
  int status = 0;        // as from waitpid
  int error = 0;         // why it could not be started
  std::string messages;  // its stderr
};

/// The environment without the variables that gnuplot reads settings from: a user's settings must
/// not change a figure.
std::vector<char*> plain_environment() {
  constexpr std::array kSettings{
      "GNUTERM=",    "GNUPLOT_LIB=", "GNUPLOT_FONTPATH=", "GNUPLOT_DEFAULT_GDFONT=",
      "GDFONTPATH=", "FIT_SCRIPT=",  "FIT_LOG="};
  std::vector<char*> out;
  for (char** at = ::environ; *at != nullptr; ++at) {
    const std::string_view variable{*at};
    const bool sets = std::any_of(kSettings.begin(), kSettings.end(),
                                  [&](const char* name) { return variable.starts_with(name); });
    if (!sets) out.push_back(*at);
  }
  out.push_back(nullptr);
  return out;
}

/// Runs `program -d SCRIPT` in `folder`, without input; its output is discarded.
Outcome run_gnuplot(const GnuplotOptions& options, const fs::path& folder,
                    const std::string& script) {
  Outcome outcome;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    outcome.error = errno;
    return outcome;
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  // -d: no start-up files, so that a user's settings cannot change a figure.
  std::string program = options.program;
  std::string defaults = "-d";
  std::string file = script;
  std::array<char*, 4> arguments{program.data(), defaults.data(), file.data(), nullptr};
  std::vector<char*> environment = plain_environment();
  pid_t child = 0;
  outcome.error = ::posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(),
                                 environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (outcome.error != 0) {
    outcome.found = outcome.error != ENOENT;
    ::close(ends[0]);
    return outcome;
  }

  const auto deadline = Clock::now() + options.timeout;
  bool running = true;
  while (running) {
    pollfd readable{ends[0], POLLIN, 0};
    ::poll(&readable, 1, /*timeout_ms=*/10);
    running = ::waitpid(child, &outcome.status, WNOHANG) == 0;
    if (running && Clock::now() >= deadline) {
      outcome.timed_out = true;
      ::kill(child, SIGKILL);
      ::waitpid(child, &outcome.status, 0);
      running = false;
    }
    std::array<char, 4096> chunk{};
    for (ssize_t n = 0; (n = ::read(ends[0], chunk.data(), chunk.size())) > 0;) {
      outcome.messages.append(chunk.data(), static_cast<std::size_t>(n));
    }
    if (running && (readable.revents & POLLHUP) != 0) ::usleep(1000);  // stderr closed: do not spin
  }
  ::close(ends[0]);
  return outcome;
}

/// gnuplot's line with the error, without the script's file name.
std::string first_complaint(const std::string& messages) {
  std::string last;
  for (std::size_t at = 0; at < messages.size();) {
    const std::size_t end = std::min(messages.find('\n', at), messages.size());
    const std::string line = messages.substr(at, end - at);
    if (line.find_first_not_of(" ^\t") != std::string::npos) last = line;
    at = end + 1;
  }
  constexpr std::size_t kLongest = 200;
  return shortened(clean_text(last), kLongest);
}

/// Whether the file has the end marker of its format: gnuplot exits with 0 on a full disk.
bool is_whole(const fs::path& path, std::string_view format) {
  constexpr std::size_t kEnd = 64;
  std::error_code status;
  const std::uintmax_t size = fs::file_size(path, status);
  if (status || size == 0) return false;
  std::ifstream in{path, std::ios::binary};
  in.seekg(-static_cast<std::streamoff>(std::min<std::uintmax_t>(size, kEnd)), std::ios::end);
  const std::string end{std::istreambuf_iterator<char>{in}, {}};
  const std::string_view mark = format == "svg" ? "</svg>" : format == "png" ? "IEND" : "%%EOF";
  return end.find(mark) != std::string::npos;
}

/// Why gnuplot could not write into `folder`.
std::string reason_of_gap(const fs::path& folder) {
  constexpr std::uintmax_t kNoRoom = 1 << 20;  // bytes: less than a figure may take
  std::error_code status;
  const fs::space_info space = fs::space(folder, status);
  if (!status && space.available < kNoRoom) return std::generic_category().message(ENOSPC);
  return "gnuplot ended without an error and left it incomplete";
}

/// Draws one figure. Returns the error, or an empty string. Sets `found` to false if there is no
/// gnuplot.
std::string draw_one(const Figure& figure, const fs::path& folder, const GnuplotOptions& options,
                     bool& found) {
  const Outcome outcome = run_gnuplot(options, folder, figure.name + ".gp");
  if (!outcome.found) {
    found = false;
    return fmt::format(
        "{} was not found, so no figures were drawn; their data and scripts are in the folder of "
        "the figures (Debian and Ubuntu: apt install gnuplot-nox; then, in it: gnuplot *.gp)",
        options.program);
  }
  std::string failure;
  if (outcome.error != 0) {
    failure = std::generic_category().message(outcome.error);
  } else if (outcome.timed_out) {
    failure = fmt::format("gnuplot took more than {} s", options.timeout.count());
  } else if (outcome.status != 0) {
    const std::string message = first_complaint(outcome.messages);
    failure = message.empty() ? "gnuplot failed" : "gnuplot reported: " + message;
  }
  return failure.empty() ? failure : fmt::format("{} was not drawn: {}", figure.name, failure);
}

}  // namespace

std::string gnuplot_quote(std::string_view text) {
  // gnuplot 5.4 miscounts doubled quotes next to double quotes, so a quote is never written.
  std::string out = "'";
  for (const char c : clean_text(text)) {
    // XML forbids "]]>" in text: an invisible word joiner separates it.
    if (c == '>' && out.ends_with("]]")) out += "\u2060";
    if (c == '\'')
      out += "\u2019";
    else
      out += c;
  }
  return out + "'";
}

DrawnFigures draw_figures(const std::vector<Figure>& figures, const fs::path& folder,
                          const GnuplotOptions& options, const FigureStyle& style) {
  DrawnFigures drawn;
  bool found = true;
  for (const Figure& figure : figures) {
    const std::string script = figure.styled ? figure.styled(style) : figure.script;
    write_file_atomically(folder / (figure.name + ".csv"), figure.csv);
    write_file_atomically(folder / (figure.name + ".gp"), script);
    if (const std::string document = figure_document(figure); !document.empty()) {
      write_file_atomically(folder / (figure.name + kFigureSuffix), document);
    }
    if (!found) continue;
    const std::string failure = draw_one(figure, folder, options, found);
    if (!failure.empty()) drawn.notes.push_back(failure);
    if (!found) continue;
    drawn.failed = drawn.failed || !failure.empty();
    for (const std::string& format : style.formats) {
      const std::string name = fmt::format("{}.{}", figure.name, format);
      if (failure.empty() && !is_whole(folder / name, format)) {
        cannot_write(folder / name, reason_of_gap(folder));
      }
      std::error_code ignored;
      if (failure.empty()) {
        drawn.files.push_back(name);
      } else {
        fs::remove(folder / name, ignored);
      }
    }
  }
  return drawn;
}

}  // namespace kvsim
