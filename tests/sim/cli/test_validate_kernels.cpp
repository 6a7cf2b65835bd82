// kvsim validate kernels executed as by a user.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::Outcome;
using test::run_kvsim;

TEST_CASE("validate kernels: every kernel passes with counts equal to its formula") {
  const fs::path folder = fresh("all");
  const Outcome outcome =
      run_kvsim({"validate", "kernels", "--seed", "5", "--json", "-o", "results"}, folder);
  CHECK(outcome.status == 0);
  CHECK(outcome.err.empty());
  const json document = json::parse(outcome.out);
  CHECK(document.at("schema") == "kvsim.validate-kernels/1");
  CHECK(document.at("device") == "cuda-sim");
  CHECK(document.at("pass") == true);
  std::set<std::string> names;
  for (const json& kernel : document.at("kernels")) {
    INFO(kernel.dump());
    CHECK(kernel.at("pass") == true);
    CHECK(kernel.at("error") <= kernel.at("error_allowed"));
    CHECK(kernel.at("bytes_counted") == kernel.at("bytes_model"));
    CHECK_FALSE(kernel.contains("time_us"));  // nothing was timed
    names.insert(kernel.at("name").get<std::string>());
  }
  CHECK(names.size() >= 20);
  std::ifstream written{folder / "results" / "result.json"};
  CHECK(json::parse(written) == document);
  for (const char* figure : {"kernel_errors", "kernel_bytes"}) {
    CHECK(fs::exists(folder / "results" / "figures" / (std::string{figure} + ".csv")));
  }
}

TEST_CASE("validate kernels: the table fits a terminal of 80 columns and names every kernel") {
  const fs::path folder = fresh("table");
  const Outcome all = run_kvsim({"validate", "kernels"}, folder);
  CHECK(all.status == 0);
  CHECK(all.out.find("all pass") != std::string::npos);
  std::size_t begin = 0;
  for (std::size_t end = all.out.find('\n'); end != std::string::npos;
       begin = end + 1, end = all.out.find('\n', begin)) {
    CHECK(end - begin <= 80);
  }
  const Outcome one =
      run_kvsim({"validate", "kernels", "--only", "gather_entries", "--cases"}, folder);
  CHECK(one.status == 0);
  CHECK(one.out.find("3 rows of 257") != std::string::npos);
  // 80 columns truncate the shapes; the document contains them in full.
  const Outcome whole =
      run_kvsim({"validate", "kernels", "--only", "gather_entries", "--json"}, folder);
  CHECK(whole.out.find("keeps 31") != std::string::npos);
  CHECK(one.out.find("top_rows") == std::string::npos);
}

TEST_CASE("validate kernels: invalid requests are one line and exit 2") {
  const fs::path folder = fresh("refused");
  const auto complaint = [&](const std::vector<std::string>& words) {
    const Outcome outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK(fs::is_empty(folder));
    return outcome.err;
  };
  CHECK(complaint({"validate", "kernels", "--device", "tpu", "-o", "x"}).find("sim or cuda") !=
        std::string::npos);
  CHECK(complaint({"validate", "kernels", "--only", "no_such"}).find("gather_entries") !=
        std::string::npos);
  for (const char* of_gpu : {"--counters", "--profiled"}) {
    CHECK(complaint({"validate", "kernels", of_gpu, "-o", "x"}).find("--device cuda") !=
          std::string::npos);
  }
  const json devices = json::parse(run_kvsim({"list", "devices", "--json"}, folder).out);
  if (!devices.at("entries").empty()) {
    std::printf("KVSIM-SKIPPED: this machine has a GPU\n");
    return;
  }
  const std::string missing = complaint({"validate", "kernels", "--device", "cuda", "-o", "x"});
  CHECK(missing.find("looked for a CUDA driver") != std::string::npos);
  CHECK(missing.find("--device sim") != std::string::npos);
  CHECK(complaint({"calibrate", "--device", "cuda", "-o", "x.json"})
            .find("looked for a CUDA driver") != std::string::npos);
}

TEST_CASE("validate: kvsim without kvsim-validate next to it names the missing program") {
  const fs::path folder = fresh("no-validate");
  fs::copy_file(KVSIM_PROGRAM, folder / "kvsim");
  const auto said = [&](const std::string& words) {
    const std::string command = "cd '" + folder.string() + "' && ./kvsim " + words + " 2> said";
    const int status = std::system(command.c_str());
    CHECK(WEXITSTATUS(status) == 2);
    std::ifstream in{folder / "said"};
    return std::string{std::istreambuf_iterator<char>{in}, {}};
  };
  const std::string program = (folder / "kvsim-validate").string();
  CHECK(said("validate kernels")
            .starts_with("kvsim: validate kernels: expected the program " + program +
                         ", got No such file or directory"));
  CHECK(
      said("calibrate --measured . -o out").starts_with("kvsim: calibrate: expected the program"));
  // A misspelled option is reported even without the program.
  CHECK(said("validate kernels --nope").find("unknown option \"--nope\"") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
