"""Applies the recipes of CONTRIBUTING.md in a copy of the tree and counts the files they touch.

usage: test_recipes.py SOURCE SCRATCH [CMAKE_ARGUMENT...]

Each recipe adds one item: a GPU, a model, a family of models, a kind of layer, a method, a part of methods, a scheduler,
or a scenario key. The number of files that it writes or changes, including tests and documents, must equal the last
column of its row. Generated files and CHANGELOG.md are not counted. Then kvsim is built once with little optimisation
and uses all additions; the changed tests are compiled but not run.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

MOST = {"method": 6, "part": 6, "scheduler": 6, "GPU": 3, "model": 3, "key": 2, "family": 3, "kind of layer": 7}


class Tree:
    """The source tree with changes in memory. `touched` contains the files changed by the current recipe."""

    def __init__(self, source):
        self.source = source
        self.changed = {}
        self.touched = set()

    def read(self, path):
        return self.changed[path] if path in self.changed else (self.source / path).read_text(encoding="utf-8")

    def write(self, path, text):
        self.changed[path] = text
        self.touched.add(path)

    def before(self, path, anchor, text):
        """Inserts `text` before the line that begins with `anchor` after any blanks."""
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
    tree.before("tests/models/catalogue/test_gpu.cpp", 'TEST_CASE("every GPU\'s data are plausible',
                'TEST_CASE("the GPU of the recipe") { CHECK(find_gpu("recipe-gpu").sms == 142); }\n\n')


def add_model(tree):
    entry = json.loads(tree.read("models/llm/data/llama-3.1-8b.json"))
    entry.update(name="recipe-model", aliases=["Recipe/Model"], source="config.json of Recipe/Model")
    entry.pop("checkpoints", None)
    tree.write("models/llm/data/recipe-model.json", json.dumps(entry, indent=2) + "\n")
    tree.before("tests/models/catalogue/test_llm.cpp", '{"llama-1-7b", 6\'738',
                "      {\"recipe-model\", 8'030'261'248},\n")


def add_family(tree):
    """Adds a family of configurations: Llama with sliding windows in every second layer."""
    tree.write("models/llm/hf/family/recipe.cpp", """\
#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {
namespace {

Llm read_recipe(const Field& config) {
  Llm llm = read_llama(config);
  const std::int32_t window = count(config.at("window_size"), 1, kMaxPositions);
  for (std::size_t l = 0; l < llm.layers.size(); l += 2) llm.layers[l].attention.window = window;
  return llm;
}

}  // namespace

Family recipe_family() {
  return {.model_type = "recipe", .architectures = {"RecipeForCausalLM"}, .read = read_recipe};
}

}  // namespace kvsim::hf
""")
    entry = json.loads(tree.read("models/llm/data/llama-3.1-8b.json"))
    entry.update(name="recipe-family", aliases=["Recipe/Family"], source="config.json of Recipe/Family")
    entry.pop("checkpoints", None)
    entry["config"].update(model_type="recipe", window_size=512)
    entry["config"].pop("architectures", None)
    tree.write("models/llm/data/recipe-family.json", json.dumps(entry, indent=2) + "\n")
    tree.before("tests/models/catalogue/test_layer_kinds.cpp", 'TEST_CASE("recurrent states do not grow', """\
TEST_CASE("the family of the recipe") {
  CHECK(find_llm("recipe-family").layers[0].attention.window == 512);
  CHECK(find_llm("recipe-family").layers[1].attention.window == 0);
}

""")


def add_layer_kind(tree):
    """Adds a layer with a state of one vector per head."""
    tree.write("models/llm/layer/recipe.cpp", """\
#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

class RecipeKind final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "recipe"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return name(); }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    return fmt::format("recipe: {} vectors of {}", layer.state.n_heads, layer.state.key_dim);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const std::int64_t width = std::int64_t{layer.state.n_heads} * layer.state.key_dim;
    out.push_back({.module = "recipe.in", .operation = "projection", .in = d_model, .out = width});
    add_state_output(out, "recipe.out", width, d_model);
  }
  void add_cache(const LayerSpec& layer, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& out) const override {
    const double elements = double{1} * layer.state.n_heads * layer.state.key_dim;
    out.push_back({.role = CacheRole::kState, .entry_bytes = bytes_in(elements, layer.state.dtype)});
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    layer.state.n_heads = divided(layer.state.n_heads, ranks, "vectors", model);
  }
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    const double elements = double{1} * layer.state.n_heads * layer.state.key_dim;
    add_recurrence(layer, span, span.tokens,
                   {.name = "recipe", .flops = 2 * span.tokens * elements}, out);
  }
};

}  // namespace

const LayerKind& recipe_kind() {
  static const RecipeKind kind;
  return kind;
}

}  // namespace kvsim
""")
    tree.before("models/llm/layer/spec.hpp", "kShortConv", "  kRecipe,\n")
    tree.before("models/llm/layer/kinds.hpp", "[[nodiscard]] const LayerKind& short_conv_kind();",
                "[[nodiscard]] const LayerKind& recipe_kind();\n")
    tree.before("models/llm/layer/layer_kind.cpp", "case StateKind::kShortConv:",
                "    case StateKind::kRecipe:\n      return recipe_kind();\n")
    tree.before("docs/models.md", "| `none` | nothing", "| `recipe` | a vector for each head | the vectors | no |\n")
    tree.before("tests/models/catalogue/test_layer_kinds.cpp", 'TEST_CASE("short convolutions hold', """\
TEST_CASE("the kind of layer of the recipe") {
  LayerSpec layer;
  layer.state = {.kind = StateKind::kRecipe, .n_heads = 3, .key_dim = 4};
  CHECK(at(layer, 9).held == 3 * 4 * 2);
}

""")


def add_method(tree):
    """Adds a published method that consists of existing parts."""
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
    """Adds a selector that keeps the keys with the smallest sum of magnitudes."""
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

std::shared_ptr<const SelectRule> resolve_recipe(MethodResolver& resolver) {
  return make_scored(resolver, std::make_shared<Recipe>());
}

}  // namespace

AxisChoice select_recipe() { return scored_choice("recipe", {}, &resolve_recipe); }

}  // namespace kvsim
""")
    tree.before("models/methods/select/select.hpp", "AxisChoice select_keydiff();", "AxisChoice select_recipe();\n")
    tree.before("models/methods/resolve/choices.cpp", "select_keydiff(),", "      select_recipe(),\n")
    tree.before("models/methods/catalogue/content.cpp", 'scorer("keydiff"',
                '      scorer("recipe", "prompt tokens whose keys have the least sum of magnitudes", "none", flash,\n'
                '             "RecipePress"),\n')
    reference = "tests/models/methods/test_methods_reference.cpp"
    tree.before(reference, 'TEST_CASE("every selector of the catalogue has a reference', """\
TEST_CASE("recipe holds what its reference holds after every step of a real trace") {
  for (const Where& w : kStretches) {
    const auto part = stretch(w.layer, w.kv_head, w.first, w.tokens, w.prompt);
    std::vector<std::pair<double, std::int32_t>> sums;
    for (std::int32_t id = 0; id < w.prompt; ++id) {
      double sum = 0;
      for (const float x : part.view.key(id)) sum += std::abs(double{x});
      sums.emplace_back(sum, id);
    }
    std::sort(sums.begin(), sums.end());
    std::set<std::int32_t> want;
    for (std::size_t i = 0; i < std::min<std::size_t>(30, sums.size()); ++i) {
      want.insert(sums[i].second);
    }
    test::SessionRun run{resolved("recipe", part.view, {}, Budget{0, 30}), part.view};
    at_every_step(run, [&](std::int64_t newest, const CacheSession& session) {
      if (newest >= w.prompt) want.insert(static_cast<std::int32_t>(newest));
      REQUIRE(held(session) == want);
    });
  }
}

""")
    tree.before(reference, '{"keydiff", scorers},', '      {"recipe", {here, "recipe holds what its reference holds"}},\n')


def add_scheduler(tree):
    """Adds a scheduler: running sequences first, then waiting prompts; the last in order is preempted."""
    tree.write("sim/serve/schedulers/recipe.cpp", """\
// Running sequences first, then waiting prompts, in chunks or whole. The last sequence in the
// queue's order is preempted.

#include <algorithm>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/serve/schedulers/limits.hpp"
#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {
namespace {

class Recipe : public Scheduler {
 public:
  Recipe(const SchedulerSpec& spec, const SchedulerContext& site)
      : chunked_{spec.chunked_prefill.value_or(true)} {
    const ConfiguredLimits configured = resolve_limits(*site.stack, spec);
    seqs_ = configured.seqs.value_or(256);
    budget_ = configured.iteration_tokens(chunked_, site.max_model_len, 2048);
    expect_at_least("recipe", "max_num_seqs", seqs_, 1);
    expect_at_least("recipe", "max_num_batched_tokens", budget_, chunked_ ? 1 : site.max_model_len);
  }
  void schedule(BatchBuilder& batch) override {
    std::int64_t left = budget_;
    bool has_preempted = false;
    for (std::size_t i = 0; i < batch.running().size() && left > 0;) {
      const RequestId id = batch.running()[i];
      const Sequence& one = batch.sequence(id);
      const std::int32_t tokens = take(one.to_compute(), left);
      bool is_planned = one.in_flight || batch.schedule(id, tokens);
      while (!is_planned) {
        const RequestId victim = batch.last_in_order();
        has_preempted = true;
        left += preempt(batch, victim, i);
        if (victim == id) break;
        is_planned = batch.schedule(id, tokens);
      }
      if (!is_planned) break;
      if (!one.in_flight) left -= tokens;
      ++i;
    }
    while (!has_preempted && batch.waiting() > 0 && left > 0 && std::ssize(batch.running()) < seqs_) {
      const RequestId id = batch.next_waiting();
      const std::int32_t wanted = batch.sequence(id).known - batch.cached_tokens(id);
      const std::int32_t tokens = take(wanted, left);
      if ((!chunked_ && tokens < wanted) || !batch.admit(id, tokens)) return;
      left -= tokens;
    }
  }
  [[nodiscard]] BatchLimits limits() const override { return {.seqs = seqs_, .tokens = budget_}; }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("recipe, max_num_seqs {}, max_num_batched_tokens {}", seqs_, budget_);
  }

 private:
  static std::int32_t take(std::int32_t wanted, std::int64_t left) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(wanted, left));
  }
  /// Tokens that the budget gets back; `at` stays the place of the same sequence.
  static std::int32_t preempt(BatchBuilder& batch, RequestId victim, std::size_t& at) {
    const auto place = std::ranges::find(batch.running(), victim) - batch.running().begin();
    if (static_cast<std::size_t>(place) < at) --at;
    return batch.preempt(victim);
  }
  bool chunked_ = true;
  std::int64_t seqs_ = 0, budget_ = 0;
};

}  // namespace

std::unique_ptr<Scheduler> make_recipe(const SchedulerSpec& spec, const SchedulerContext& site) {
  return std::make_unique<Recipe>(spec, site);
}

}  // namespace kvsim
""")
    tree.before("sim/serve/schedulers/scheduler.hpp", "[[nodiscard]] std::unique_ptr<Scheduler> make_trtllm(", """\
[[nodiscard]] std::unique_ptr<Scheduler> make_recipe(const SchedulerSpec& spec,
                                                     const SchedulerContext& site);
""")
    table = "sim/serve/schedulers/scheduler.cpp"
    tree.before(table, "constexpr std::array kSglangPolicies", """\
constexpr std::array kRecipeOptions{Name{"max_num_batched_tokens"}, Name{"max_num_seqs"},
                                    Name{"chunked_prefill"}, Name{"prefix_caching"}};
""")
    tree.before(table, 'SchedulerInfo{.name = "vllm-v0"', """\
      SchedulerInfo{.name = "recipe",
                    .summary = "running sequences first, then waiting prompts",
                    .make = &make_recipe,
                    .options = kRecipeOptions},
""")
    tree.before("docs/serving.md", "| `sglang` | only waiting",
                "| `recipe` | running sequences, then waiting prompts | the last in order is preempted | none |\n")
    # It admits requests like vLLM's V1 scheduler.
    tree.before("tests/support/waiting_rules.hpp", 'if (site_.spec.name == "vllm-v1") return v1(v, f);',
                '    if (site_.spec.name == "recipe") return v1(v, f);\n')
    tree.before("tests/sim/serve/test_serve_schedulers.cpp",
                'TEST_CASE("a watermark keeps blocks free when requests are admitted', """\
TEST_CASE("the scheduler of the recipe") {
  SmallService service{.scheduler = {.name = "recipe"}};
  service.trace.requests = {request(0, 40, 6), request(0, 40, 6)};
  CHECK(service.run().completed == 2);
}

""")


def add_key(tree):
    """Adds an engine setting: a member and a row. Code that uses the setting is not part of the recipe."""
    tree.before("models/stack/stack.hpp", "std::optional<std::int64_t> block_tokens{};",
                "  std::optional<std::int64_t> recipe_key{};\n")
    tree.before("sim/scenario/fields/keys.cpp", 'engine("block_tokens", kTokens',
                '    engine("recipe_key", integer(1, 9), "none", "the key of the recipe",\n'
                "           &StackOptions::recipe_key),\n")


RECIPES = {"GPU": add_gpu, "model": add_model, "method": add_method, "part": add_part,
           "scheduler": add_scheduler, "key": add_key, "family": add_family, "kind of layer": add_layer_kind}


def stated_files(contributing):
    """Returns the last column of each row with a bold word in its first cell: {"GPU": 3, …}."""
    stated = {}
    for line in contributing.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = re.search(r"\*\*(.+?)\*\*", cells[0])
        if line.startswith("|") and name and cells[-1].isdigit():
            stated[name.group(1)] = int(cells[-1])
    return stated


def write_copy(tree, root):
    """Writes the changed tree: files that git tracks or would add; without git, all except hidden folders and build outputs.
    Files with unchanged contents keep their times, so that a later run builds less."""
    source = tree.source
    listed = subprocess.run(["git", "-C", source, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True)
    if listed.returncode == 0:
        names = {name for name in listed.stdout.decode().split("\0") if name and (source / name).is_file()}
    else:
        paths = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
        names = {str(path) for path in paths
                 if path.parts[0] not in ("build", "out", "dist") and not path.parts[0].startswith(".")}
    names |= set(tree.changed)
    for old in [path for path in root.rglob("*") if path.is_file()]:
        if str(old.relative_to(root)) not in names:
            old.unlink()
    for name in names:
        changed = tree.changed.get(name)
        data = (source / name).read_bytes() if changed is None else changed.encode()
        to = root / name
        if not to.exists() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)


def check(condition, text):
    print(("ok: " if condition else "FAILED: ") + text, flush=True)
    if not condition:
        check.failures += 1


check.failures = 0


def check_syntax(build, root, tests):
    """Checks the syntax of the tests that the recipes changed, with the compiler flags of a test program."""
    commands = json.loads((build / "compile_commands.json").read_text())
    flags = shlex.split(next(one["command"] for one in commands if "/test_methods.dir/" in one["command"]))
    kept, skip = [], False
    for flag in flags[:-1]:
        if skip or flag in ("-c", "-MD", "-Winvalid-pch"):
            skip = False
        elif flag in ("-o", "-MT", "-MF", "-include"):
            skip = True
        else:
            kept.append(flag)
    for test in tests:
        done = subprocess.run([*kept, "-fsyntax-only", root / test], capture_output=True, text=True)
        check(done.returncode == 0, f"{test} compiles{done.stderr}")


def use(kvsim, scratch):
    """Checks that the additions are listed, used in runs, and refused for values out of range."""

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
    status, _, err = run("run", "--model", "recipe-family", "--gpu", "recipe-gpu", "--isl", "1000", "--osl", "50")
    check(status == 0, f"a family: {err.strip() or 'done'}")
    served = point("--rate", "2", "--requests", "20", "--set", "/scheduler=recipe")
    check(served.get("completed") == 20, "the scheduler serves all requests")
    point("--set", "/engine/recipe_key=5")
    status, _, err = run("run", "--model", "recipe-model", "--gpu", "recipe-gpu", "--set", "/engine/recipe_key=10")
    check(status == 2 and "expected an integer in [1, 9], got 10" in err, f"a key's range: {err.strip()}")
    check('"recipe_key"' in run("schema")[1], "the key is in the schema")
    check("/engine/recipe_key=" in run("completion", "bash")[1], "the key is completed")


def main():
    source, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    stated = stated_files((source / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    tree = Tree(source)
    tests = set()
    for name, apply in RECIPES.items():
        tree.touched = set()
        apply(tree)
        count = len(tree.touched)
        tests |= {path for path in tree.touched if path.startswith("tests/")}
        check(stated.get(name) == count,
              f"{name}: {count} files, CONTRIBUTING.md states {stated.get(name)}: {', '.join(sorted(tree.touched))}")
        check(count <= MOST[name], f"{name}: at most {MOST[name]} files")
    root, build = scratch / "tree", scratch / "build"
    write_copy(tree, root)
    subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", "-Wno-dev", "-DCMAKE_BUILD_TYPE=Debug",
                    "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DKVSIM_CUDA=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *sys.argv[3:]],
                   check=True)
    subprocess.run(["cmake", "--build", build, "--target", "kvsim"], check=True)
    check_syntax(build, root, sorted(tests))
    use(build / "kvsim", scratch)
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
