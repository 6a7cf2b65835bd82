// kvsim explorer: a page that recomputes its results when a control changes.

#include <filesystem>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/explorer/page/explorer_page.hpp"
#include "sim/report/files/atomic_file.hpp"

namespace kvsim {
namespace {

int run_explorer(const Arguments& arguments) {
  arguments.expect_words(0, 0, "only options: -o FILE.html names the page");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"explorer: expected -o FILE.html for the page"};
  if (explorer_core().empty()) {
    throw InputError{
        "explorer: this build of kvsim does not contain it, because it was made without "
        "Emscripten. In a "
        "clone "
        "./kv explorer installs it, builds and writes out/explorer.html; by hand: package "
        "emscripten, "
        "then cmake --preset explorer && cmake --build --preset explorer (docs/explorer.md)"};
  }
  const std::string page = explorer_page();
  write_file_atomically(*out, page);
  constexpr double kMega = 1e6;
  write_out(fmt::format("{} ({:.1f} MB): open it in a browser; it needs no network\n", *out,
                        static_cast<double>(page.size()) / kMega));
  return kDone;
}

}  // namespace

Command explorer_command() {
  return {.name = "explorer",
          .summary = "write an interactive planning page that works offline",
          .usage = "kvsim explorer -o FILE.html",
          .examples = "kvsim explorer -o explorer.html",
          .options = {{"out", 'o', "FILE.html", false, "the page to write"}},
          .run = run_explorer};
}

}  // namespace kvsim
