"""Applies the recipes of CONTRIBUTING.md in a copy of the tree and counts the files they touch.

usage: test_recipes.py SOURCE SCRATCH [CMAKE_ARGUMENT...]

Each recipe adds one thing: a GPU, a model, a method, a part of methods, a scheduler, a scenario key. The number of
files that it writes or changes is that of the last column of its row, tests and documents included. Files that a
command generates and CHANGELOG.md are not counted. Then kvsim is built once, with little optimisation, and uses all of it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

MOST = {"method": 6, "part": 6, "scheduler": 6, "GPU": 3, "model": 3, "key": 2}


class Tree:
    """A copy of the sources. `touched`: files changed since the last recipe began."""

    def __init__(self, root):
        self.root = root
        self.touched = set()

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def write(self, path, text):
        (self.root / path).write_text(text, encoding="utf-8")
        self.touched.add(path)

    def before(self, path, anchor, text):
        """Inserts `text` before the line that begins with `anchor`, after blanks."""
        lines = self.read(path).splitlines(keepends=True)
        places = [n for n, line in enumerate(lines) if line.lstrip().startswith(anchor)]
        if len(places) != 1:
            raise SystemExit(f"{path}: expected one line that begins with {anchor!r}, got {len(places)}; "
                             "the recipe in tests/test_recipes.py has to follow the file")
        lines.insert(places[0], text)
        self.write(path, "".join(lines))


def add_gpu(tree):
    gpu = json.loads(tree.read("models/gpu/data/l40s.json"))
    gpu.update(name="Recipe-GPU", aliases=[], hbm="64 GiB", hbm_usable="62000 MiB")
    tree.write("models/gpu/data/recipe-gpu.json", json.dumps(gpu, indent=2) + "\n")
    tree.before("docs/gpus.md", "| T4 |", "| Recipe-GPU | 60.55 | torch properties | 0.864 | 362 | none |\n")
    tree.before("tests/models/catalogue/test_gpu.cpp", 'TEST_CASE("every GPU\'s figures are possible',
                'TEST_CASE("the GPU of the recipe") { CHECK(find_gpu("recipe-gpu").sms == 142); }\n\n')


def add_model(tree):
    entry = json.loads(tree.read("models/llm/data/llama-3.1-8b.json"))
    entry.update(name="recipe-model", aliases=["Recipe/Model"], source="config.json of Recipe/Model")
    entry.pop("checkpoints", None)
    tree.write("models/llm/data/recipe-model.json", json.dumps(entry, indent=2) + "\n")
    tree.before("tests/models/catalogue/test_llm.cpp", '{"llama-1-7b", 6\'738',
                "      {\"recipe-model\", 8'030'261'248},\n")


def add_method(tree):
    """A published method made of known parts."""
    tree.before("models/methods/catalogue/content.cpp", 'scorer("keydiff"', """\
      {.name = "recipe-method",
       .summary = "prompt tokens with the smallest keys, stored in 8 bits",
       .paper = "none",
       .axes = {{"select", "knorm"}, {"budget", "uniform"}, {"store", "int8"}},
       .size_law = "int(s (1 - ratio)) + n",
       .cost_class = flash},
""")
    tree.before("tests/models/methods/test_methods_content.cpp", 'TEST_CASE("a ratio truncates in doubles', """\
TEST_CASE("the method of the recipe") {
  CHECK(describe_method("recipe-method").size_law == "int(s (1 - ratio)) + n");
}

""")


def add_part(tree):
    """A selector that keeps the keys with the smallest sum of magnitudes."""
    tree.write("models/methods/select/keys/recipe.cpp", """\
// The sum of magnitudes of keys: score_i = -sum |k_i|.

#include <cmath>

#include "models/methods/select/scored.hpp"
#include "models/methods/select/select.hpp"

namespace kvsim {
namespace {

class Recipe final : public Scorer {
 public:
  std::vector<double> score(const ScoredTokens& tokens,
                            const SessionPlace& /*place*/) const override {
    const auto d = static_cast<std::size_t>(tokens.head.head_dim);
    std::vector<double> all(tokens.size(), 0.0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      for (const float x : tokens.keys.subspan(i * d, d)) all[i] -= std::abs(double{x});
    }
    return all;
  }
  bool non_negative() const override { return false; }
  ScoreCost cost(double entries, double /*queries*/, const HeadShape& shape) const override {
    return {.flops = 2.0 * entries * shape.head_dim,
            .read = entries * shape.row_bytes() / 2,
            .transient = truncated<Bytes>(entries) * 4};
  }
};

std::shared_ptr<const SelectRule> settle_recipe(MethodResolver& settling) {
  return make_scored(settling, std::make_shared<Recipe>());
}

}  // namespace

AxisChoice select_recipe() { return scored_choice("recipe", {}, &settle_recipe); }

}  // namespace kvsim
""")
    tree.before("models/methods/select/select.hpp", "AxisChoice select_keydiff();", "AxisChoice select_recipe();\n")
    tree.before("models/methods/settle/choices.cpp", "select_keydiff(),", "      select_recipe(),\n")
    tree.before("models/methods/CMakeLists.txt", "select/keys/knorm.cpp",
                "          select/keys/recipe.cpp\n")
    tree.before("models/methods/catalogue/content.cpp", 'scorer("keydiff"',
                '      scorer("recipe", "prompt tokens whose keys have the least sum of magnitudes", "none", flash,\n'
                '             "RecipePress"),\n')
    tree.before("tests/models/methods/test_methods_content.cpp", 'TEST_CASE("a ratio truncates in doubles', """\
TEST_CASE("the part of the recipe") {
  CHECK(describe_method("recipe").axes.front() == std::pair<std::string, std::string>{"select", "recipe"});
}

""")


def add_scheduler(tree):
    """One request after another."""
    tree.write("sim/serve/schedulers/recipe.cpp", """\
// One request after another: no two are in an iteration.

#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

class OneByOne : public Scheduler {
 public:
  void schedule(BatchBuilder& batch) override {
    if (batch.running().empty()) {
      if (batch.waiting() == 0) return;
      const RequestId id = batch.next_waiting();
      const std::int32_t cached = batch.cached_tokens(id);
      (void)batch.admit(id, batch.sequence(id).known - cached);
      return;
    }
    const RequestId id = batch.running().front();
    const Sequence& one = batch.sequence(id);
    if (one.in_flight || batch.schedule(id, one.to_compute())) return;
    batch.preempt(id);
  }
  [[nodiscard]] BatchLimits limits() const override { return {.seqs = 1}; }
  [[nodiscard]] std::string describe() const override { return "recipe, one by one"; }
};

}  // namespace

std::unique_ptr<Scheduler> make_recipe(const SchedulerSpec& /*spec*/,
                                       const SchedulerContext& /*site*/) {
  return std::make_unique<OneByOne>();
}

}  // namespace kvsim
""")
    tree.before("sim/serve/schedulers/scheduler.hpp", "[[nodiscard]] std::unique_ptr<Scheduler> make_trtllm(", """\
[[nodiscard]] std::unique_ptr<Scheduler> make_recipe(const SchedulerSpec& spec,
                                                     const SchedulerContext& site);
""")
    tree.before("sim/serve/schedulers/scheduler.cpp", 'SchedulerInfo{.name = "vllm-v0"', """\
      SchedulerInfo{.name = "recipe", .summary = "one request after another", .make = &make_recipe},
""")
    tree.before("docs/serving.md", "| `sglang` | only waiting",
                "| `recipe` | one request after another | the request is preempted | none |\n")
    tree.before("tests/sim/serve/test_serve_schedulers.cpp",
                'TEST_CASE("a watermark keeps blocks free when requests are admitted', """\
TEST_CASE("the scheduler of the recipe") {
  SmallService service{.scheduler = {.name = "recipe"}};
  service.trace.requests = {request(0, 40, 6), request(0, 40, 6)};
  CHECK(service.run().completed == 2);
}

""")


def add_key(tree):
    """A setting of the engine: a member and a row. What it changes comes in addition."""
    tree.before("models/stack/stack.hpp", "std::optional<std::int64_t> block_tokens{};",
                "  std::optional<std::int64_t> recipe_key{};\n")
    tree.before("sim/scenario/fields/keys.cpp", 'engine("block_tokens", kTokens',
                '    engine("recipe_key", integer(1, 9), "none", "the key of the recipe",\n'
                "           &StackOptions::recipe_key),\n")


RECIPES = {"GPU": add_gpu, "model": add_model, "method": add_method, "part": add_part,
           "scheduler": add_scheduler, "key": add_key}


def stated_files(contributing):
    """The last column of each row whose first cell has a word in bold: {"GPU": 3, …}."""
    stated = {}
    for line in contributing.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = re.search(r"\*\*(.+?)\*\*", cells[0])
        if line.startswith("|") and name and cells[-1].isdigit():
            stated[name.group(1)] = int(cells[-1])
    return stated


def copy_sources(source, root):
    """Copies what git knows or would add; without git, all but hidden folders and build outputs. Files that did not
    change keep their times, so that a later run builds less."""
    listed = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True)
    if listed.returncode == 0:
        names = {name for name in listed.stdout.decode().split("\0") if name and (source / name).is_file()}
    else:
        paths = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
        names = {str(path) for path in paths
                 if path.parts[0] not in ("build", "out", "dist") and not path.parts[0].startswith(".")}
    for old in [path for path in root.rglob("*") if path.is_file()]:
        if str(old.relative_to(root)) not in names:
            old.unlink()
    for name in names:
        to = root / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_bytes() != (source / name).read_bytes():
            shutil.copyfile(source / name, to)


def check(condition, text):
    print(("ok: " if condition else "FAILED: ") + text, flush=True)
    if not condition:
        check.failures += 1


check.failures = 0


def use(kvsim, scratch):
    """What was added is found, takes part in runs, and is refused where its range ends."""

    def run(*arguments):
        done = subprocess.run([kvsim, *arguments], cwd=scratch, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def point(*arguments):
        status, out, err = run("run", "--model", "recipe-model", "--gpu", "recipe-gpu", "--stack", "vllm",
                               "--isl", "1000", "--osl", "50", "--json", *arguments)
        check(status == 0, f"run {' '.join(arguments)}: {err.strip() or 'done'}")
        return json.loads(out)["points"][0] if status == 0 else {}

    plain = point()
    check(plain.get("model") == "recipe-model" and plain.get("gpu") == "Recipe-GPU", "a model and a GPU")
    for method in ["recipe-method", "recipe"]:
        less = point("--method", method, "--budget", "0.2")
        check(less.get("kv_bytes", 0) < plain.get("kv_bytes", 0), f"{method} holds less than the full cache")
    served = point("--rate", "2", "--requests", "20", "--set", "/scheduler=recipe")
    check(served.get("completed") == 20, "the scheduler serves all requests")
    point("--set", "/engine/recipe_key=5")
    status, _, err = run("run", "--model", "recipe-model", "--gpu", "recipe-gpu", "--set", "/engine/recipe_key=10")
    check(status == 2 and "expected an integer in [1, 9], got 10" in err, f"a key's range: {err.strip()}")
    check('"recipe_key"' in run("schema")[1], "the key is in the schema")
    check("/engine/recipe_key=" in run("completion", "bash")[1], "the key is completed")


def main():
    source, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    root = scratch / "tree"
    root.mkdir(parents=True, exist_ok=True)
    copy_sources(source, root)
    stated = stated_files((source / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    tree = Tree(root)
    for name, apply in RECIPES.items():
        tree.touched = set()
        apply(tree)
        count = len(tree.touched)
        check(stated.get(name) == count,
              f"{name}: {count} files, CONTRIBUTING.md states {stated.get(name)}: {', '.join(sorted(tree.touched))}")
        check(count <= MOST[name], f"{name}: at most {MOST[name]} files")
    build = scratch / "build"
    subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "-Wno-dev", "-DCMAKE_BUILD_TYPE=Debug",
                    "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DKVSIM_CUDA=OFF", *sys.argv[3:]], check=True)
    subprocess.run(["cmake", "--build", build, "--target", "kvsim"], check=True)
    use(build / "kvsim", scratch)
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
