#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/units/temporary.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::interrupt_kvsim;
using test::Outcome;
using test::run_kvsim;
using test::Stdout;
using test::text_of;
using test::Words;

const fs::path kRoot{KVSIM_SOURCE_DIR};
const std::string kSample = (kRoot / "traces/samples/books-treasure-512.safetensors").string();

std::string write(const fs::path& file, std::string_view text) {
  std::ofstream{file, std::ios::binary} << text;
  return file.string();
}

constexpr std::string_view kTiny = R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM",
  "dtype": "fp16", "prompt_tokens": 100, "output_tokens": 10,
  "method": ["full", {"name": "streaming-llm", "budget": 0.5}]})";

/// Invalid input: exit 2, no output on stdout, one line on stderr. Returns that line without the
/// program's name.
std::string complaint(const Words& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.starts_with("kvsim: "));
  return outcome.err.substr(0, outcome.err.size() - 1);
}

json json_of(const Words& words, const fs::path& folder) {
  const Outcome outcome = run_kvsim(words, folder);
  CHECK(outcome.status == 0);
  CHECK(outcome.err.empty());
  REQUIRE(json::accept(outcome.out));
  return json::parse(outcome.out);
}

TEST_CASE("calibrate: a start-up log becomes a scenario's engine") {
  const fs::path folder = fresh("calibrate");
  write(
      folder / "v.log",
      "INFO [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 3.1 seconds\n"
      "DEBUG [gpu_worker.py:283] Total non KV cache memory: 19.88GiB; torch peak memory increase: "
      "4.76GiB; non-torch forward increase memory: 0.13GiB; weights memory: 14.99GiB.\n"
      "INFO [gpu_worker.py:298] Available KV cache memory: 51.38 GiB\n"
      "INFO [kv_cache_utils.py:1087] GPU KV cache size: 420,864 tokens\n");
  write(folder / "v.json", R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM",
    "stack": "vllm@0.11", "prompt_tokens": 1000, "output_tokens": 2, "figures": false})");
  const json calibrated =
      json_of({"calibrate", "--from-log", "v.log", "v.json", "-o", "o.json", "--json"}, folder);
  CHECK(calibrated.at("schema") == "kvsim.calibrate-log/1");
  const json& after = calibrated.at("with_overrides");
  // 4.76 GiB = 5,111,011,082 B, rounded to the nearest byte.
  CHECK(after.at("activation_bytes") == 5111011082);
  CHECK(after.at("usable_bytes").get<std::int64_t>() ==
        after.at("weights_bytes").get<std::int64_t>() +
            after.at("non_torch_bytes").get<std::int64_t>() +
            after.at("activation_bytes").get<std::int64_t>() +
            after.at("kv_cache_bytes").get<std::int64_t>());
  CHECK(std::abs(after.at("tokens").get<double>() / 420864 - 1) < 0.002);
  // A scenario that extends the overrides reproduces the start.
  write(folder / "w.json", R"({"extends": ["v.json", "o.json"]})");
  const json run = json_of({"run", "w.json", "--json", "-q", "-o", "r"}, folder);
  CHECK(run.at("points").at(0).at("startup") == after);
  CHECK(
      has(run_kvsim({"run", "w.json", "-o", "r", "--verbose"}, folder).out, "GPU KV cache size: "));
  CHECK(has(complaint({"calibrate"}, folder), "--from-log FILE"));
  write(folder / "empty.log", "nothing\n");
  CHECK(has(complaint({"calibrate", "--from-log", "empty.log"}, folder),
            "empty.log: expected a vLLM start-up log"));
  write(folder / "hf.json", kTiny);
  CHECK(has(complaint({"calibrate", "--from-log", "v.log", "hf.json"}, folder), "paged cache"));
}

TEST_CASE("version and help") {
  const fs::path folder = fresh("help");
  CHECK(run_kvsim({"--version"}, folder).out.starts_with("kvsim 0.2.0\n"));
  for (const Words& words : {Words{"help"}, Words{"--help"}, Words{"-h"}}) {
    const Outcome help = run_kvsim(words, folder);
    CHECK(help.status == 0);
    CHECK(has(help.out, "kvsim help COMMAND"));
    CHECK(help.err.empty());
  }
  for (const Words& command :
       {Words{"run"}, Words{"compare"}, Words{"plot"}, Words{"explain"}, Words{"replay"},
        Words{"sweep"}, Words{"trace", "info"}, Words{"trace", "check"}, Words{"trace", "generate"},
        Words{"trace", "convert"}, Words{"list"}, Words{"show"}}) {
    Words requested{"help"};
    requested.insert(requested.end(), command.begin(), command.end());
    const Outcome help = run_kvsim(requested, folder);
    CHECK(help.status == 0);
    CHECK(has(help.out, "examples:"));
    CHECK_FALSE(has(help.out, "\n:\n"));  // every heading has text
    Words dashed = command;
    dashed.emplace_back("--help");
    CHECK(run_kvsim(dashed, folder).out == help.out);
  }
  const Outcome nothing = run_kvsim({}, folder);
  CHECK(nothing.status == 2);
  CHECK(nothing.out.empty());
}

TEST_CASE("errors for misspelled words on the command line suggest the nearest one") {
  const fs::path folder = fresh("slips");
  CHECK(has(complaint({"rnu"}, folder), "unknown command \"rnu\"; did you mean \"run\"?"));
  CHECK(has(complaint({"trace", "inof"}, folder), "did you mean \"trace info\"?"));
  CHECK(has(complaint({"--vresion"}, folder), "did you mean \"--version\"?"));
  CHECK(has(complaint({"run", "--jsno", "x.json"}, folder), "did you mean \"--json\"?"));
  CHECK(has(complaint({"list", "modles"}, folder), "did you mean \"models\"?"));
  // One letter is an initial, not a misspelling of "-tp".
  CHECK(has(complaint({"plan", "-g", "T4"}, folder), "did you mean \"--gpu\"?"));
  CHECK(has(complaint({"run"}, folder), "run: expected one or more scenario files"));
  CHECK(has(complaint({"run", "x.json", "-o"}, folder), "'-o' is missing"));
  CHECK(has(complaint({"run", "x", "-o", "a", "-o", "b"}, folder), "-o is given twice"));
  CHECK(has(complaint({"list", "gpus", "h100", "x"}, folder), "list: unexpected \"x\""));
  CHECK(
      has(complaint({"replay", "--trace", kSample, "--method", "full", "--threads", "1.5"}, folder),
          "--threads: expected an integer in [0, 1024], got \"1.5\""));
}

TEST_CASE("with --json stdout holds one JSON document with its schema and nothing else") {
  const fs::path folder = fresh("json");
  const std::string scenario = write(folder / "tiny.json", kTiny);
  for (const char* kind : {"models", "gpus", "methods", "stacks", "calibrations"}) {
    const json list = json_of({"list", kind, "--json"}, folder);
    CHECK(list.at("schema") == "kvsim.list/1");
    REQUIRE_FALSE(list.at("entries").empty());
    const std::string name = list.at("entries").at(0).at("name");
    const json show = json_of({"show", kind, name, "--json"}, folder);
    CHECK(show.at("schema") == "kvsim.show/1");
    CHECK(show.at("entry") == list.at("entries").at(0));
    CHECK_FALSE(run_kvsim({"list", kind}, folder).out.empty());
    CHECK(run_kvsim({"show", kind, name}, folder).out.starts_with(name + "\n"));
  }
  CHECK(json_of({"trace", "info", kSample, "--json"}, folder).at("schema") == "kvsim.trace-info/1");
  CHECK(json_of({"trace", "check", kSample, "--json"}, folder).at("schema") ==
        "kvsim.trace-check/1");
  const json run = json_of({"run", scenario, "--json"}, folder);
  CHECK(run.at("schema") == "kvsim.run/1");
  CHECK(run.at("kind") == "static");
  REQUIRE(run.at("points").size() == 2);
  const json& point = run.at("points").at(1);
  CHECK(point.at("method") == "streaming-llm");
  CHECK(point.at("budget") == 0.5);
  CHECK(point.at("oom").is_null());
  CHECK(point.at("peak_hbm_bytes").get<double>() > 0);
  CHECK(point.at("throughput_tok_s_low").is_null());
  CHECK_FALSE(fs::exists(folder / "kvsim-out"));
  const json two = json_of({"run", scenario, scenario, "--json"}, folder);
  CHECK(two.at("schema") == "kvsim.runs/1");
  CHECK(two.at("runs").at(1) == run);
}

TEST_CASE("devices: those of this machine or the reason why there are none") {
  const fs::path folder = fresh("devices");
  const json list = json_of({"list", "devices", "--json"}, folder);
  CHECK(list.at("kind") == "devices");
  const Outcome text = run_kvsim({"list", "devices"}, folder);
  CHECK(text.status == 0);
  if (list.at("entries").empty()) {
    CHECK(has(text.out, "no CUDA devices; looked for: "));
    CHECK(has(text.out, "problem: " + list.at("problem").get<std::string>()));
  } else {
    CHECK(has(text.out, list["entries"][0].at("name").get<std::string>()));
    CHECK(list["entries"][0].at("total_memory_bytes") > 0);
  }
  CHECK(has(complaint({"show", "device", "0"}, folder), "kvsim list devices"));
}

TEST_CASE("the cache size by a method's law equals the size counted in the run") {
  const fs::path folder = fresh("law");
  const std::string scenario = write(folder / "law.json", R"({"gpu": "H200-141GB-SXM",
    "model": ["llama-2-7b", "mistral-7b-v0.1", "deepseek-v2-lite", "gemma-3-4b"],
    "prompt_tokens": [100, 5000], "output_tokens": 300, "batch": 2,
    "method": ["full", {"name": "h2o", "budget": 0.3}, {"name": "zeromerge", "budget": 0.3}]})");
  const json run = json_of({"run", scenario, "--json"}, folder);
  CHECK(run.at("points").size() == 24);
  for (const json& point : run.at("points")) {
    INFO(point.at("label").get<std::string>());
    CHECK(point.at("oom").is_null());
    CHECK(point.at("kv_bytes") == point.at("kv_bytes_wanted"));
  }
}

TEST_CASE("a size law that depends on the data is measured on the named trace or refused") {
  const fs::path folder = fresh("measured");
  fs::copy_file(kSample, folder / "t.safetensors");
  const std::string scenario = write(folder / "m.json", R"({"model": "llama-2-7b",
    "gpu": "A100-80GB-SXM", "dtype": "fp16", "prompt_tokens": 384, "output_tokens": 8,
    "method": ["full", {"name": "kvmerger", "measured_on": "t.safetensors"}]})");
  const json result = json_of({"run", scenario, "--json"}, folder);
  CHECK(result.at("points").at(0).at("size_law") == "closed form");
  const json& measured = result.at("points").at(1);
  CHECK(measured.at("size_law") == "measured on t");
  CHECK(measured.at("measured_on") == "t.safetensors");
  CHECK(has(measured.at("notes").at(0), "size law measured on trace t "));
  CHECK(measured.at("kv_bytes") < result.at("points").at(0).at("kv_bytes"));
  CHECK(measured.at("kv_bytes") == measured.at("kv_bytes_wanted"));
  CHECK(has(run_kvsim({"run", scenario}, folder).out, "size law measured on trace t "));
  CHECK(has(complaint({"run", scenario, "--set", "/method/1/measured_on=null"}, folder),
            "\"measured_on\""));
}

TEST_CASE("same scenario, same bytes, with any number of threads") {
  const fs::path folder = fresh("bytes");
  const std::string scenario =
      write(folder / "s.json", R"({"model": "llama-2-7b", "gpu": "A100-80GB-SXM", "prompt_tokens":
      [100, 200, 300], "output_tokens": 50, "batch": [1, 2], "method": ["full", "h2o"],
      "replay": {"trace": ")" + kSample +
                                   R"("}})");
  const Outcome one = run_kvsim({"run", scenario, "--json", "-j", "1"}, folder);
  const Outcome three = run_kvsim({"run", scenario, "--json", "-j", "3"}, folder);
  CHECK(one.status == 0);
  CHECK(one.out == three.out);
}

TEST_CASE("a results folder appears complete at the requested path") {
  const fs::path folder = fresh("folder");
  const std::string scenario = write(folder / "tiny.json", kTiny);
  const Outcome run = run_kvsim({"run", scenario, "--no-figures"}, folder);
  CHECK(run.status == 0);
  CHECK(run.err.empty());
  CHECK(has(run.out, "streaming-llm"));
  CHECK(json::accept(text_of(folder / "kvsim-out/tiny/result.json")));
  CHECK(run_kvsim({"run", scenario, "--no-figures", "-q"}, folder, Stdout::kClosed).status == 0);
  CHECK(run_kvsim({"run", scenario, "--no-figures", "-q", "-o", "mine"}, folder).out.empty());
  CHECK(text_of(folder / "mine/result.json") == text_of(folder / "kvsim-out/tiny/result.json"));
  const Outcome both = run_kvsim({"run", scenario, "--json", "--no-figures", "-o", "j"}, folder);
  CHECK(both.out == text_of(folder / "mine/result.json"));
  write(folder / "file", "text");
  CHECK(has(complaint({"run", scenario, "-o", "file/below"}, folder), "cannot be written"));
  fs::create_directories(folder / "theirs");
  write(folder / "theirs/keep.txt", "text");
  (void)complaint({"run", scenario, "-o", "theirs"}, folder);
  CHECK(text_of(folder / "theirs/keep.txt") == "text");
}

TEST_CASE("the working directory is never replaced by results") {
  const fs::path folder = fresh("here");
  const std::string scenario = write(folder / "tiny.json", kTiny);
  const fs::path here = folder / "work" / "deep";
  fs::create_directories(here);
  const auto inode = [&] {
    struct stat about = {};
    return ::stat(here.c_str(), &about) == 0 ? about.st_ino : 0;
  };
  const auto before = inode();
  for (const std::string& out : Words{".", "..", "./", "../deep", here.string()}) {
    INFO(out);
    const std::string said = complaint({"run", scenario, "--no-figures", "-o", out}, here);
    CHECK(said == "kvsim: " + out +
                      ": cannot be written: this is the working directory, which cannot be "
                      "replaced; name a new folder");
  }
  CHECK(has(complaint({"run", scenario, "-o", "/"}, here), "it is the root of the file system"));
  CHECK(inode() == before);
  CHECK(run_kvsim({"run", scenario, "-q", "--no-figures", "-o", "out"}, here).status == 0);
}

TEST_CASE("bad scenarios: exit 2 and one line before anything is computed or written") {
  const fs::path folder = fresh("bad");
  const auto bad = [&](std::string_view text) {
    return complaint({"run", write(folder / "b.json", text)}, folder);
  };
  CHECK(has(complaint({"run", "absent.json"}, folder), "absent.json: cannot be read"));
  CHECK(has(bad(R"({"model": "llama-2-7b", "memory": {"usable_hbm": "80 Gib"}})"),
            "/memory/usable_hbm: expected a size such as \"80 GiB\", got \"80 Gib\""));
  CHECK(has(bad(R"({"modle": "x"})"), "/modle: unknown key; did you mean \"model\"?"));
  CHECK(has(bad(R"({"gpu": "A100", "gpu": "H100"})"), "key \"gpu\" is given twice"));
  CHECK(has(bad(R"({"gpu": "A900-80GB-SXM"})"), "/gpu: unknown GPU \"A900-80GB-SXM\"; did you"));
  CHECK(has(bad(R"({"model": "llama-2-8b"})"), "/model: unknown model \"llama-2-8b\"; did you"));
  CHECK(has(bad(R"({"method": "h3o"})"), "/method: unknown method \"h3o\"; did you mean \"h2o\"?"));
  CHECK(has(bad(R"({"method": {"name": "h2o", "budget": 0}})"), "/method/budget: expected a shar"));
  CHECK(has(bad(R"({"model": "llama-2-7b", "gpu": "H200-141GB-SXM", "prompt_tokens": 100,
                    "output_tokens": 1, "method": {"name": "zeromerge", "budget": "2 entries"}})"),
            "/method: method \"zeromerge\": a budget of 2 entries"));
  CHECK(has(bad("{\"title\": \"\x1b[31m\", \"gpu\": 1}"), "not valid JSON"));
  CHECK(has(bad("{\"\x01\": 1}"), "kvsim: "));
  CHECK(has(bad(R"({"extends": "absent.json"})"), "b.json: /extends: no such file: "));
  CHECK(has(bad(R"({"extends": "."})"), "b.json: /extends: no such file: "));
  CHECK(has(bad(R"({"model": "a\u0000b\nc"})"), "/model: unknown model \"a b c\""));
  const std::string tiny = write(folder / "tiny.json", kTiny);
  CHECK(has(complaint({"run", tiny, "-o", ""}, folder), "run: -o DIR is empty"));
  CHECK(has(complaint({"run", ""}, folder), "run: an argument is empty"));
  CHECK(has(complaint({"run", tiny, "--set", "/batch"}, folder),
            "--set: expected /json/pointer=value, got \"/batch\""));
  CHECK(has(complaint({"run", tiny, "--set", "/title=\xff"}, folder),
            "--set /title: expected UTF-8 text"));
  CHECK(has(complaint({"run", tiny, "--set", "/batch=many"}, folder),
            "tiny.json (after --set): /batch: expected an integer in [1, 1048576], got \"many\""));
  CHECK_FALSE(fs::exists(folder / "kvsim-out"));
}

TEST_CASE("invalid input of every kind is one line for every command") {
  const fs::path folder = fresh("nonsense");
  const std::string open(5000, '['), close(5000, ']');
  const auto tiny_with = [](std::string_view extra) {
    return std::string{kTiny.substr(0, kTiny.size() - 1)} + "," + std::string{extra} + "}";
  };
  const std::string texts[] = {"",
                               " \n",
                               "null",
                               "3",
                               "[]",
                               "\"x\"",
                               "{\"model\":",
                               "{\"batch\": NaN}",
                               "{\"batch\": 1e999}",
                               "{'model': 1}",
                               "{} x",
                               "{} /* open",
                               std::string("\xff\xfe{\0}\0", 6),
                               "{\"model\": \"\xff\"}",
                               open + close,
                               tiny_with(R"("batch": -1)"),
                               tiny_with(R"("batch": 1.5)"),
                               tiny_with(R"("batch": 99999999999999999999999)"),
                               tiny_with(R"("batch": true)"),
                               tiny_with(R"("batch": [])"),
                               tiny_with(R"("batch": [[1]])"),
                               tiny_with(R"("batch": {"a": 1})"),
                               tiny_with(R"("batch": 1, "batch": 1)"),
                               tiny_with(R"("memory": {"hbm": "1 GiB", "hbm": "2 GiB"})"),
                               tiny_with(R"("memory": {"hbm": "-5 GiB"})"),
                               tiny_with(R"("memory": {"hbm": "nan GiB"})"),
                               tiny_with(R"("memory": {"hbm": "1e30 GiB"})"),
                               tiny_with(R"("memory": [])"),
                               tiny_with(R"("seed": -1)"),
                               tiny_with(R"("title": 7)"),
                               tiny_with(R"("points": [])"),
                               tiny_with(R"("points": [3])"),
                               tiny_with(R"("published": [{}])"),
                               tiny_with(R"("replay": 3)"),
                               tiny_with(R"("figures": 3)"),
                               tiny_with(R"("": 1)")};
  for (const std::string& text : texts) {
    INFO(text.substr(0, 100));
    const std::string file = write(folder / "n.json", text);
    CHECK(complaint({"run", file, "--json"}, folder).size() < 600);
    CHECK(complaint({"show", "model", file}, folder).size() < 600);
  }
  fs::create_directories(folder / "folder.json");
  const std::string tiny = write(folder / "tiny.json", kTiny);
  for (const Words& words : std::vector<Words>{{"run", "folder.json"},
                                               {"run", "/dev/null"},
                                               {"run", ""},
                                               {"run", tiny, "-o", tiny},
                                               {"run", tiny, "-o", "/dev/null/x"},
                                               {"run", tiny, "-o", "/proc/x"},
                                               {"run", tiny, "-j", "-1"},
                                               {"run", tiny, "-j", "1e9"},
                                               {"run", tiny, "--set", "/batch=" + open},
                                               {"run", tiny, "--set", "=3"},
                                               {"run", tiny, "--set", ""},
                                               {"show"},
                                               {"show", "model"},
                                               {"show", "model", ""},
                                               {"show", "model", "folder.json"},
                                               {"show", "model", std::string(9000, 'x')},
                                               {"show", "gpu", "NaN"},
                                               {"show", "stack", "../etc"},
                                               {"show", "method", "+"},
                                               {"show", "colour", "red"},
                                               {"show", "device", "0"},
                                               {"list"},
                                               {"list", ""},
                                               {"list", "nope"},
                                               {"list", "models", "extra"}}) {
    INFO(words.back().substr(0, 100));
    CHECK(complaint(words, folder).size() < 700);
  }
  CHECK(has(complaint({"show", "model", "/"}, folder), "/: this folder contains no config.json"));
}

TEST_CASE("replay: one run for each method and budget") {
  const fs::path folder = fresh("replay");
  const json replay =
      json_of({"replay", "--trace", kSample, "--method", "full,h2o", "--method", "zeromerge",
               "--budget", "0.2,100", "--param", "alpha=0.5", "--json"},
              folder);
  CHECK(replay.at("schema") == "kvsim.replay/1");
  CHECK(replay.at("trace") == "books-treasure-512");
  CHECK(replay.at("skipped").empty());
  REQUIRE(replay.at("methods").size() == 5);
  CHECK(replay.at("methods").at(0).at("name") == "full");
  CHECK(replay.at("methods").at(0).at("budget").is_null());
  CHECK(replay.at("methods").at(1).at("budget") == 0.2);
  CHECK(replay.at("methods").at(2).at("budget") == 100);
  CHECK(replay.at("methods").at(4).at("params").at("alpha") == 0.5);
  for (const json& method : replay.at("methods")) {
    CHECK(method.at("steps") == 128);
    CHECK(method.at("bytes_held_final") == method.at("closed_form_bytes_final"));
    CHECK_FALSE(method.contains("per_step"));
    CHECK_FALSE(method.contains("per_head"));
  }
  const json detailed = json_of({"replay", "--trace", kSample, "--method", "h2o", "--json",
                                 "--per-step", "--per-head", "--dump-kept", "kept.json"},
                                folder);
  CHECK(detailed.at("methods").at(0).at("per_step").size() == 128);
  CHECK(detailed.at("methods").at(0).at("per_head").size() == 12);
  const json kept = json::parse(text_of(folder / "kept.json"));
  CHECK(kept.at("method") == "h2o");
  CHECK(kept.at("kept").size() == 6);
  CHECK(kept.at("kept").at(0).size() == 2);
  const Outcome text = run_kvsim(
      {"replay", "--trace", kSample, "--method", "h2o", "-o", "out", "--no-figures"}, folder);
  CHECK(text.status == 0);
  CHECK(fs::exists(folder / "out/result.json"));
}

TEST_CASE("docs/methods.md matches the catalogue") {
  const fs::path folder = fresh("methods-doc");
  const Outcome outcome = run_kvsim({"list", "methods", "--markdown"}, folder);
  CHECK(outcome.status == 0);
  // Regenerated by: kvsim list methods --markdown > docs/methods.md
  CHECK(outcome.out == text_of(kRoot / "docs/methods.md"));
  CHECK(
      has(complaint({"list", "gpus", "--markdown"}, folder), "--markdown is only for all methods"));
}

TEST_CASE("replay: methods that can run do so and others state the reason") {
  const fs::path folder = fresh("replay-all");
  // Two entries are fewer than the sinks and slots of some methods.
  const json replay =
      json_of({"replay", "--trace", kSample, "--method", "all", "--budget", "2", "--json"}, folder);
  CHECK_FALSE(replay.at("skipped").empty());
  for (const json& skipped : replay.at("skipped")) {
    CHECK(has(skipped.at("reason"), "method \""));
  }
  const json methods = json_of({"list", "methods", "--json"}, folder);
  CHECK(replay.at("methods").size() + replay.at("skipped").size() == methods.at("entries").size());
  for (const json& method : replay.at("methods")) {
    INFO(method.at("name"));
    for (const char* key : {"host_bytes_final", "link_bytes_total", "bytes_full_read_total",
                            "entries_read_share", "counts", "oracle_mass_gap"}) {
      CHECK(method.contains(key));
    }
    if (method.at("name") == "oracle-step") CHECK(method.at("oracle_mass_gap") == 0.0);
  }
  // If the method is requested by name, it is an error.
  CHECK(has(complaint({"replay", "--trace", kSample, "--method", "streaming-llm", "--budget", "2"},
                      folder),
            "leaves no window"));
}

TEST_CASE("replay: several traces are aggregated by method and budget") {
  const fs::path folder = fresh("replay-several");
  CHECK(run_kvsim(
            {"trace", "generate", "made.safetensors", "--layers", "2", "--heads", "2", "--kv-heads",
             "1", "--head-dim", "16", "--tokens", "96", "--prompt-tokens", "64", "-q"},
            folder)
            .status == 0);
  const Words words{"replay",
                    "--trace",
                    kSample,
                    "--trace",
                    "made.safetensors",
                    "--method",
                    "full,h2o,oracle-step",
                    "--budget",
                    "0.25,0.5"};
  Words as_json = words;
  as_json.emplace_back("--json");
  const json both = json_of(as_json, folder);
  CHECK(both.at("traces").dump() == R"(["books-treasure-512","made"])");
  REQUIRE(both.at("methods").size() == 10);
  REQUIRE(both.at("aggregate").size() == 5);
  for (const json& row : both.at("aggregate")) {
    std::vector<double> errors;
    for (const json& method : both.at("methods")) {
      if (method.at("name") == row.at("name") && method.at("budget") == row.at("budget")) {
        errors.push_back(method.at("rel_error_mean"));
      }
    }
    REQUIRE(errors.size() == 2);
    const double mean = (errors[0] + errors[1]) / 2;
    CHECK(row.at("rel_error").at("mean").get<double>() == test::rel(mean));
    // For two values, the deviation is |a - b| / sqrt(2), and t is 12.706 over sqrt(2).
    const double half = 12.706 * std::abs(errors[0] - errors[1]) / 2;
    CHECK(row.at("rel_error").at("ci95_high").get<double>() == test::rel(mean + half));
  }
  Words to_folder = words;
  to_folder.insert(to_folder.end(), {"-o", "out", "--no-figures", "-q"});
  CHECK(run_kvsim(to_folder, folder).status == 0);
  for (const char* file : {"made/result.json", "books-treasure-512/replay_methods.csv",
                           "aggregate/result.json", "aggregate/aggregate.csv"}) {
    CHECK(fs::exists(folder / "out" / file));
  }
}

TEST_CASE("replay: a repeated method or budget is an error") {
  const fs::path folder = fresh("twice");
  const auto said = [&](Words words) {
    words.insert(words.begin(), {"replay", "--trace", kSample});
    return complaint(words, folder);
  };
  CHECK(said({"-m", "h2o", "-m", "h2o", "-b", "0.2"}) == "kvsim: -m h2o is given twice");
  CHECK(said({"-m", "full,h2o,full", "-b", "0.2"}) == "kvsim: -m full is given twice");
  CHECK(said({"-m", "all,h2o"}) == "kvsim: -m h2o is given twice");
  CHECK(said({"-m", "h2o", "-b", "0.2", "-b", "0.1,0.20"}) == "kvsim: -b 0.20 is given twice");
}

TEST_CASE("replay: invalid requests are refused in one line") {
  const fs::path folder = fresh("bad-replay");
  const auto bad = [&](Words words) {
    words.insert(words.begin(), {"replay", "--trace", kSample});
    return complaint(words, folder);
  };
  CHECK(has(bad({"--method", "zeromrge"}), "unknown method \"zeromrge\"; did you mean"));
  CHECK(has(bad({"--method", "h2o", "--budget", "0"}), "--budget: expected a share"));
  CHECK(has(bad({"--method", "h2o", "--budget", "1.5"}), "\"64 entries\", got 1.5"));
  CHECK(has(bad({"--method", "h2o", "--budget", "0.1,,2"}), "separated by single commas"));
  CHECK(has(bad({"--method", "h2o", "--param", "alpha"}), "--param: expected name=value"));
  CHECK(has(bad({"--method", "full,h2o", "--param", "deacy=1"}), "did you mean \"decay\"?"));
  CHECK(has(bad({"--method", "zeromerge", "--param", "alpha=7"}), "parameter alpha"));
  CHECK(has(bad({}), "expected --method NAME; `kvsim help replay` shows how"));
  CHECK(has(complaint({"replay", "--method", "full"}, folder),
            "replay: expected --trace FILE; `kvsim help replay` shows how"));
  CHECK(has(complaint({"replay", "--trace", "absent", "--method", "full"}, folder), "absent"));
  const std::string whole = text_of(kSample);
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{5}, std::size_t{3000}, whole.size() / 2, whole.size() - 1}) {
    INFO(length);
    const std::string cut =
        write(folder / "cut.safetensors", std::string_view{whole}.substr(0, length));
    CHECK(has(complaint({"replay", "--trace", cut, "--method", "full"}, folder),
              "cut.safetensors: "));
    CHECK(has(complaint({"trace", "info", cut}, folder), "cut.safetensors: "));
  }
}

TEST_CASE("sweep: every combination in the requested order, each equal to its single replay") {
  const fs::path folder = fresh("sweep");
  const Words words{"sweep",         "--trace",        kSample,
                    "--method",      "zeromerge,full", "--vary",
                    "alpha=0.2,1.0", "--vary",         "residual_slots=1,4",
                    "--budget",      "0.1,100",        "--param",
                    "decay=0.9",     "--json"};
  const json sweep = json_of(words, folder);
  CHECK(sweep.at("schema") == "kvsim.sweep/1");
  CHECK(sweep.at("traces").dump() == R"(["books-treasure-512"])");
  CHECK(sweep.at("grid").at("params").dump() ==
        R"([{"name":"alpha","values":[0.2,1.0]},{"name":"residual_slots","values":[1,4]}])");
  CHECK(sweep.at("grid").at("budgets").dump() == "[0.1,100]");
  CHECK(sweep.at("grid").at("fixed").dump() == R"({"decay":0.9})");
  // Two budgets of 2 x 2 values, and one run of the method without budget or parameters.
  REQUIRE(sweep.at("points").size() == 9);
  CHECK(sweep.at("grid").at("combinations") == 9);
  std::size_t at = 0;
  for (const std::string budget : {"0.1", "100"}) {
    for (const std::string alpha : {"0.2", "1.0"}) {
      for (const std::string slots : {"1", "4"}) {
        const json& point = sweep.at("points").at(at++);
        CHECK(point.at("values").at("alpha") == json::parse(alpha));
        CHECK(point.at("values").at("residual_slots") == json::parse(slots));
        const json alone = json_of({"replay", "--trace", kSample, "--method", "zeromerge",
                                    "--budget", budget, "--param", "alpha=" + alpha, "--param",
                                    "residual_slots=" + slots, "--param", "decay=0.9", "--json"},
                                   folder);
        CHECK(point.at("method").dump() == alone.at("methods").at(0).dump());
      }
    }
  }
  CHECK(sweep.at("points").at(8).at("method").at("name") == "full");
  CHECK(sweep.at("points").at(8).at("values").at("alpha").is_null());
  // The best point is at least as good as all others of its budget and bytes; the full cache is
  // excluded.
  for (const json& best : sweep.at("best")) {
    const std::string metric = best.at("metric");
    const double sign = metric == "cosine_mean" || metric == "retained_mass_mean" ? -1 : 1;
    CHECK(best.at("point") != 8);
    for (const json& point : sweep.at("points")) {
      const json& method = point.at("method");
      if (method.at("budget") != best.at("budget") || method.at(metric).is_null()) continue;
      const double share =
          method.at("bytes_held_final").get<double>() / method.at("bytes_full_final").get<double>();
      if (share < best.at("bytes_share")[0] || share > best.at("bytes_share")[1]) continue;
      CHECK(sign * best.at("value").get<double>() <= sign * method.at(metric).get<double>());
    }
  }
  CHECK(sweep.at("best").size() >= 8);
  Words threads = words;
  threads.insert(threads.end(), {"--threads", "3"});
  CHECK(run_kvsim(threads, folder).out == run_kvsim(words, folder).out);
}

TEST_CASE("sweep: more combinations than one batch of replays equal single replays") {
  const fs::path folder = fresh("sweep-many");
  CHECK(run_kvsim(
            {"trace", "generate", "made.safetensors", "--layers", "2", "--heads", "2", "--kv-heads",
             "1", "--head-dim", "16", "--tokens", "96", "--prompt-tokens", "64", "-q"},
            folder)
            .status == 0);
  std::string values = "1";
  for (int i = 2; i <= 70; ++i) values += "," + std::to_string(i);
  const json sweep = json_of({"sweep", "-t", "made.safetensors", "-t", kSample, "-m", "h2o",
                              "--vary", "heavy=" + values, "--param", "recent=4", "--json"},
                             folder);
  REQUIRE(sweep.at("points").size() == 140);
  const json alone = json_of({"replay", "-t", "made.safetensors", "-m", "h2o", "--param",
                              "heavy=66", "--param", "recent=4", "--json"},
                             folder);
  CHECK(sweep.at("points").at(65).at("method").dump() == alone.at("methods").at(0).dump());
}

TEST_CASE("sweep: invalid combinations are skipped with the reason while others run") {
  const fs::path folder = fresh("sweep-skip");
  const Words words{"sweep",         "-t",       kSample, "-m", "zeromerge", "--vary",
                    "alpha=0.5,7,x", "--budget", "0.2"};
  Words as_json = words;
  as_json.emplace_back("--json");
  const json sweep = json_of(as_json, folder);
  CHECK(sweep.at("points").size() == 1);
  REQUIRE(sweep.at("skipped").size() == 2);
  CHECK(sweep.at("skipped").at(0).at("values").at("alpha") == 7);
  CHECK(has(sweep.at("skipped").at(0).at("reason"), "parameter alpha"));
  CHECK(sweep.at("skipped").at(1).at("values").at("alpha") == "x");
  Words to_folder = words;
  to_folder.insert(to_folder.end(), {"-o", "out"});
  const Outcome text = run_kvsim(to_folder, folder);
  CHECK(text.status == 0);
  CHECK(has(text.out, "1 of 3 combinations"));
  CHECK(has(text.out, "alpha"));
  CHECK(has(text.out, "best error at budget 20 %"));
  CHECK(json::parse(text_of(folder / "out/result.json")) == sweep);
  const std::string csv = text_of(folder / "out/sweep.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 2);
  CHECK(csv.starts_with("trace,method,budget,alpha,"));
  CHECK_FALSE(fs::exists(folder / "out/sweep_means.csv"));
}

TEST_CASE("sweep: several traces give the means of their single sweeps") {
  const fs::path folder = fresh("sweep-means");
  const Words make{
      "trace",           "generate", "made.safetensors", "--layers", "2",        "--heads", "2",
      "--kv-heads",      "1",        "--head-dim",       "16",       "--tokens", "96",      "-q",
      "--prompt-tokens", "64"};
  REQUIRE(run_kvsim(make, folder).status == 0);
  const Words grid{"-m", "h2o,full", "--vary", "recent=4,8", "--budget", "0.3"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), "sweep");
    words.insert(words.end(), grid.begin(), grid.end());
    return words;
  };
  Words to_folder = with({"-t", kSample, "-t", "made.safetensors", "-o", "out"});
  const Outcome text = run_kvsim(to_folder, folder);
  CHECK(text.status == 0);
  CHECK(has(text.out, "Means over the 2 traces."));
  const json both = json::parse(text_of(folder / "out/result.json"));
  REQUIRE(both.at("means").size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    double sum = 0;
    for (const std::size_t point : {i, i + 3}) {
      sum += both.at("points").at(point).at("method").at("rel_error_mean").get<double>();
    }
    CHECK(both.at("means").at(i).at("rel_error").at("mean").get<double>() ==
          doctest::Approx(sum / 2).epsilon(1e-12));
  }
  const std::string csv = text_of(folder / "out/sweep_means.csv");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 4);
  CHECK(fs::exists(folder / "out/figures/error_vs_bytes.gp"));
  CHECK(fs::exists(folder / "out/figures/error_vs_recent_h2o.csv"));
}

TEST_CASE("sweep: invalid requests are refused in one line") {
  const fs::path folder = fresh("bad-sweep");
  const auto bad = [&](Words words) {
    words.insert(words.begin(), {"sweep", "--trace", kSample, "--method", "full,zeromerge"});
    return complaint(words, folder);
  };
  CHECK(has(bad({}), "expected --vary NAME=VALUE,VALUE; `kvsim help sweep` shows how"));
  CHECK(has(bad({"--vary", "alhpa=1,2"}), "--vary: unknown parameter \"alhpa\"; did you mean"));
  CHECK(has(bad({"--vary", "alpha=1", "--param", "deacy=1"}), "did you mean \"decay\"?"));
  CHECK(has(bad({"--vary", "alpha"}), "--vary: expected name=value"));
  CHECK(has(bad({"--vary", "=1"}), "--vary: expected name=value"));
  CHECK(has(bad({"--vary", "alpha="}), "--vary alpha: expected values"));
  CHECK(has(bad({"--vary", "alpha=1,"}), "--vary alpha: expected values"));
  CHECK(has(bad({"--vary", "alpha=1,0.5,1.0"}), "--vary alpha: 1.0 is given twice"));
  CHECK(has(bad({"--vary", "alpha=1", "--vary", "alpha=0.5"}), "--vary alpha is given twice"));
  CHECK(has(bad({"--vary", "alpha=1", "--param", "alpha=0.5"}), "both varied"));
  CHECK(has(bad({"--vary", "budget=0.1,0.2"}), "--budget"));
  std::string values = "1";
  for (int i = 2; i <= 10'000; ++i) values += "," + std::to_string(i);
  CHECK(has(bad({"--vary", "residual_slots=" + values}),
            "the lists make 10001 combinations, more than 10000"));
  const auto only = [&](Words words) {
    words.insert(words.begin(), {"sweep", "--trace", kSample, "--method", "zeromerge"});
    return complaint(words, folder);
  };
  CHECK(has(only({"--vary", "alpha=7,8", "--budget", "0.2"}), "parameter alpha"));
  CHECK(has(complaint({"sweep", "-t", kSample, "-m", "zeromrge", "--vary", "alpha=1"}, folder),
            "unknown method \"zeromrge\"; did you mean"));
  CHECK(has(complaint({"sweep", "-m", "h2o", "--vary", "heavy=1"}, folder),
            "sweep: expected --trace FILE; `kvsim help sweep` shows how"));
}

TEST_CASE("traces are generated, cut and inspected") {
  const fs::path folder = fresh("traces");
  const Outcome made = run_kvsim({"trace", "generate", "t.safetensors", "--layers", "2", "--heads",
                                  "4", "--kv-heads", "2", "--head-dim", "16", "--tokens", "96"},
                                 folder);
  CHECK(made.status == 0);
  CHECK(made.out.starts_with("wrote t.safetensors ("));
  const json info = json_of({"trace", "info", "t.safetensors", "--json"}, folder);
  CHECK(info.at("tokens") == 96);
  CHECK(info.at("prompt_tokens") == 72);
  CHECK(run_kvsim({"trace", "convert", "t.safetensors", "u.safetensors", "--layers", "1",
                   "--tokens", "80", "--dtype", "fp32", "-q"},
                  folder)
            .status == 0);
  const json cut = json_of({"trace", "info", "u.safetensors", "--json"}, folder);
  CHECK(cut.at("n_layers") == 1);
  CHECK(cut.at("tokens") == 80);
  CHECK(cut.at("dtype") == "fp32");
  CHECK(json_of({"trace", "check", "u.safetensors", "--json"}, folder).at("layers").size() == 1);
  const auto checked = [&](const std::string& threads) {
    return run_kvsim({"trace", "check", kSample, "--json", "-j", threads}, folder).out;
  };
  CHECK(checked("1") == checked("5"));
  CHECK(has(complaint({"trace", "generate", "x", "--heads", "3", "--kv-heads", "2"}, folder),
            "kvsim: "));
  CHECK(has(complaint({"trace", "convert", "t.safetensors", "x", "--dtype", "int4"}, folder),
            "kvsim: "));
  CHECK_FALSE(fs::exists(folder / "x"));
}

TEST_CASE("show prints size and cost of a composition") {
  const fs::path folder = fresh("composition");
  const json preset = json_of({"show", "method", "h2o", "--json"}, folder).at("entry");
  const json entry = json_of({"show", "method", "h2o+store=fp16", "--json"}, folder).at("entry");
  CHECK(entry.at("name") == "h2o+store=fp16");
  CHECK(entry.at("axes").at("store") == "fp16");
  CHECK(entry.at("axes").at("select") == preset.at("axes").at("select"));
  CHECK(entry.at("params") == preset.at("params"));
  CHECK(entry.at("size_law") == preset.at("size_law"));
  CHECK(has(run_kvsim({"show", "method", "h2o+store=fp16"}, folder).out, "store=fp16"));
  CHECK(has(complaint({"show", "method", "h2o+stor=fp16"}, folder), "did you mean \"store\"?"));
  CHECK(has(complaint({"show", "method", "h20"}, folder), "did you mean \"h2o\"?"));
}

TEST_CASE("show reads a user's configuration") {
  const fs::path folder = fresh("config");
  fs::create_directories(folder / "own-model");
  write(folder / "own-model/config.json", R"({"model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "vocab_size": 100, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "rope_theta": 10000.0})");
  const json shown = json_of({"show", "model", "own-model/config.json", "--json"}, folder);
  CHECK(shown.at("entry").at("name") == "own-model");
  // 2 x 3 layers x 2 heads x 16 x 2 B
  CHECK(shown.at("entry").at("kv_bytes_per_token").at("bf16") == 384);
  CHECK(json_of({"show", "model", "own-model", "--json"}, folder) == shown);
  write(folder / "broken.json", R"({"model_type": "llama"})");
  CHECK(has(complaint({"show", "model", "broken.json"}, folder), "broken.json: "));
  // Quantised as published: the weights have the published size, and the cache is not quantised.
  const json quantised = json_of({"show", "model", "gpt-oss-20b", "--json"}, folder).at("entry");
  CHECK(quantised.at("published_dtype") == "fp4");
  CHECK(quantised.at("published_weight_bytes") == 13'761'264'768);
  CHECK(quantised.at("default_kv_dtype") == "bf16");
}

TEST_CASE("show prints the groups of a hybrid model and an engine's cache of it") {
  const fs::path folder = fresh("hybrid");
  const json entry = json_of({"show", "model", "Qwen/Qwen3.5-27B", "--json"}, folder).at("entry");
  // 16 full layers of 4 heads of 256, K and V, 2 B; 48 states of 48 x 128 x 128 in fp32 with 3
  // columns of 10,240 channels.
  CHECK(entry.at("kv_bytes_per_token").at("bf16") == 16 * 4 * 256 * 2 * 2);
  CHECK(entry.at("kv_bytes_per_token").at("fp8_e4m3") == 16 * 4 * 256 * 2);
  const std::int64_t state = 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2);
  CHECK(entry.at("state_bytes_per_sequence") == state);
  REQUIRE(entry.at("groups").size() == 2);
  CHECK(entry.at("groups")[0].at("kind") == "gated-delta");
  CHECK(entry.at("groups")[0].at("layers") == 48);
  CHECK(entry.at("held_bytes").at("bf16").at("8192") == 65536 * 8192 + state);
  CHECK(entry.at("read_bytes").at("bf16").at("131072") == 65536LL * 131072 + state);
  CHECK(has(json_of({"show", "model", "Qwen/Qwen3.5-27B", "--json"}, folder).dump(),
            "the vision encoder is counted if an engine loads it"));

  const json shown = json_of({"show", "model", "qwen3.5-27b", "--kv-memory", "7.33GiB",
                              "--kv-dtype", "fp8", "--max-model-len", "196608", "--json"},
                             folder);
  CHECK(shown.at("capacity").at("block_tokens") == 1568);
  CHECK(shown.at("capacity").at("capacity_tokens") == 227'886);
  CHECK(has(complaint({"show", "model", "llama-3-8b", "--tp", "2"}, folder),
            "--tp: expected --kv-memory next to it"));
  CHECK(has(complaint({"show", "model", "llama-3-8b", "--kv-memory", "much"}, folder),
            "--kv-memory: expected a size"));
  CHECK(has(
      complaint({"show", "model", "llama-3-8b", "--kv-memory", "40GiB", "--context-parallel", "7"},
                folder),
      "expected a divisor of the 1 GPUs that hold each entry"));
  const json run = json_of({"run", "--model", "qwen3.5-27b", "--gpu", "H200-141GB-SXM", "--isl",
                            "1000", "--osl", "10", "--json"},
                           folder);
  CHECK(run.at("points").at(0).at("kv_bytes") > 0);
}

TEST_CASE("a closed, missing or full standard output gives an exit status and not a crash") {
  const fs::path folder = fresh("streams");
  const std::string scenario = write(folder / "tiny.json", kTiny);
  const Outcome closed = run_kvsim({"list", "models", "--json"}, folder, Stdout::kClosed);
  CHECK(closed.status == 2);
  CHECK(closed.err == "kvsim: standard output cannot be written: it is closed\n");
  CHECK(run_kvsim({"list", "models", "--json"}, folder, Stdout::kGone).status == 0);
  const Outcome full = run_kvsim({"list", "models", "--json"}, folder, Stdout::kFull);
  CHECK(full.status == 2);
  CHECK(full.err == "kvsim: standard output cannot be written: No space left on device\n");
  CHECK(run_kvsim({"run", scenario, "--no-figures"}, folder, Stdout::kClosed).status == 2);
  CHECK(json::accept(text_of(folder / "kvsim-out/tiny/result.json")));
}

Words names_in(const fs::path& folder) {
  Words names;
  for (const auto& entry : fs::directory_iterator{folder}) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("an interrupted program removes unfinished output and names the signal") {
  const fs::path folder = fresh("interrupt");
  const Words generate{"trace",      "generate", "big.safetensors", "--layers", "64",
                       "--head-dim", "128",      "--tokens",        "4096"};
  CHECK(interrupt_kvsim(generate, folder, SIGINT).status == 128 + SIGINT);
  CHECK(names_in(folder).empty());
  CHECK(interrupt_kvsim(generate, folder, SIGTERM).status == 128 + SIGTERM);
  CHECK(names_in(folder).empty());

  const std::string scenario = write(folder / "many.json", R"({
    "model": "llama-2-7b", "gpu": "A100-80GB-SXM", "dtype": "fp16", "batch": [1, 2, 3, 4, 5, 6],
    "prompt_tokens": [1000, 2000, 3000, 4000], "output_tokens": 4000, "method": ["full", {"name": "h2o", "budget": 0.2}]})");
  const Outcome run = interrupt_kvsim({"run", scenario, "-o", "deep/er/out"}, folder, SIGINT);
  CHECK(run.status == 128 + SIGINT);
  CHECK(has(run.err,
            "interrupted; results are written completely or not at all; to repeat: kvsim run "));
  CHECK(run.err.ends_with(" -o deep/er/out\n"));
  CHECK(names_in(folder) == Words{"many.json"});
}

/// Creates a folder NAME.WORD-PID like one left behind by a killed kvsim; returns its path.
fs::path cache_after_step(const fs::path& target, const char* word) {
  const pid_t gone = ::fork();
  if (gone == 0) {
    const fs::path folder = sibling_of(target, word);
    fs::create_directories(folder / "figures");
    ::_exit(write_owner_mark(folder));
  }
  int status = 0;
  ::waitpid(gone, &status, 0);
  REQUIRE(status == 0);
  const fs::path left = fmt::format("{}.{}-{}", target.string(), word, gone);
  write(left / "points.csv", "half");
  return left;
}

TEST_CASE("leftovers of a killed program are removed by the next one that writes there") {
  const fs::path folder = fresh("abandoned");
  const std::string scenario = write(folder / "tiny.json", kTiny);
  const std::string left = cache_after_step(folder / "out", "partial");
  (void)cache_after_step(folder / "out", "partial");
  (void)cache_after_step(folder / "t.safetensors", "partial");
  const fs::path elsewhere = cache_after_step(folder / "out2", "partial");
  const std::string dead = left.substr(left.rfind('-') + 1);
  // Files without a mark belong to the user, regardless of name; leftovers of another target also
  // stay.
  const Words others{"out.partial-" + dead + "-2", "out.partial-" + dead + "x",
                     elsewhere.filename().string()};
  for (const std::string& other : others) fs::create_directories(folder / other);
  CHECK(run_kvsim({"run", scenario, "-q", "--no-figures", "-o", "out"}, folder).status == 0);
  CHECK(run_kvsim({"trace", "generate", "t.safetensors", "-q"}, folder).status == 0);
  Words expected{"out", "t.safetensors", "tiny.json"};
  expected.insert(expected.end(), others.begin(), others.end());
  std::sort(expected.begin(), expected.end());
  CHECK(names_in(folder) == expected);

  // Killed between two renames: the older results are renamed back.
  const fs::path old = cache_after_step(folder / "out", "old");
  fs::rename(old / kOwnerMark, folder / "out" / kOwnerMark);
  fs::remove_all(old);
  fs::rename(folder / "out", old);
  CHECK(run_kvsim({"run", "no.json", "-o", "out"}, folder).status == 2);
  CHECK(run_kvsim({"run", scenario, "-q", "--no-figures", "-o", "out"}, folder).status == 0);
  CHECK(names_in(folder) == expected);
}

}  // namespace
}  // namespace kvsim
