#include "sim/cli/validate/command_validate.hpp"

namespace kvsim {
namespace {

Command validate_allocator_command() {
  return {
      .name = "validate allocator",
      .summary = "replay a recorded allocation trace through the model of the caching allocator",
      .usage = "kvsim validate allocator TRACE [--device-bytes SIZE] [--alloc-conf CONF]",
      .examples =
          "python3 validation/snapshot_to_trace.py snapshot.pickle -o trace.jsonl\n"
          "kvsim validate allocator trace.jsonl --device-bytes \"79.15 GiB\"\n"
          "kvsim validate allocator t.jsonl --alloc-conf expandable_segments:True --json",
      .options =
          {{"device-bytes", 0, "SIZE", false,
            "the device's memory (the trace's; none: nothing is refused)"},
           {"outside-bytes", 0, "SIZE", false,
            "the part of it that PyTorch cannot use: context, other processes (the trace's)"},
           {"alloc-conf", 0, "CONF", false, "as PYTORCH_CUDA_ALLOC_CONF (the trace's own)"},
           {"tolerance", 0, "SHARE", false,
            "exit 1 if a peak is off by more, or a refusal is not at its event"},
           {"json", 0, "", false, "print JSON (schema kvsim.validate-allocator/1)"}},
      .run = run_validate_allocator};
}

Command validate_e2e_command() {
  return {
      .name = "validate e2e",
      .summary =
          "run a decode loop of the kernels and cuBLAS: tokens/s, peak memory, longest sequence",
      .usage = "kvsim validate e2e [--device cuda|sim] [--method M] [--budget B] [options]",
      .examples =
          "kvsim validate e2e --device sim --method zeromerge\n"
          "  kvsim validate e2e --method h2o --budget 2048 --prompt 65536\n"
          "  kvsim validate e2e --layers 8 --json -o e2e.json",
      .options = {{"device", 0, "WHERE", false,
                   "cuda: the first GPU, measured; sim: the simulator, a toy model checked (cuda)"},
                  {"method", 0, "METHOD", false, "full, streaming-llm, h2o or zeromerge (full)"},
                  {"budget", 0, "ENTRIES", false, "entries per stored head (1024; sim: 24)"},
                  {"layers", 0, "N", false, "layers of Llama-3-8B (32) or of the toy model (2)"},
                  {"batch", 0, "N", false, "sequences (1)"},
                  {"prompt", 0, "TOKENS", false, "tokens before the first step (8192; sim: 71)"},
                  {"output", 0, "STEPS", false, "decode steps (64; sim: 4)"},
                  {"rounds", 0, "N", false, "timed repetitions of the steps (4)"},
                  {"no-longest", 0, "", false, "do not look for the longest sequence"},
                  {"seed", 0, "N", false, "seed of weights, tokens and the prompt's cache (0)"},
                  {"out", 'o', "FILE", false, "JSON file to write as well"},
                  {"json", 0, "", false, "print JSON (schema kvsim.validate-e2e/1)"}},
      .run = run_validate_e2e};
}

Command validate_kernels_command() {
  return {.name = "validate kernels",
          .summary = "compare the CUDA kernels with references and with formulas of their traffic",
          .usage = "kvsim validate kernels [--device sim|cuda] [options]",
          .examples =
              "kvsim validate kernels\n"
              "  kvsim validate kernels --only decode_attention --cases\n"
              "  kvsim validate kernels --device cuda -o results/kernels",
          .options = {{"device", 0, "WHERE", false,
                       "sim: the simulator, which counts bytes; cuda: a GPU, timed (sim)"},
                      {"seed", 0, "N", false, "seed of the inputs (0)"},
                      {"only", 0, "KERNEL", false, "only this kernel"},
                      {"cases", 0, "", false, "a line for each shape"},
                      {"counters", 0, "", false,
                       "DRAM bytes of large cases by Nsight Compute (ncu), next to the formula's"},
                      {"limit", 0, "SECONDS", false,
                       "on a GPU: skip the kernels for which no time is left after this"},
                      {"profiled", 0, "", false,
                       "run each large case once, for a profiler, without comparison or timing"},
                      {"out", 'o', "DIR", false,
                       "folder for result.json, figures and, for a GPU, calibration.json"},
                      {"json", 0, "", false, "print JSON (schema kvsim.validate-kernels/1)"}},
          .run = run_validate_kernels};
}

Command validate_measured_command() {
  return {.name = "validate measured",
          .summary = "compare the kernels' cost model with measured timings",
          .usage = "kvsim validate measured FILE.csv|DIR [options]",
          .examples =
              "kvsim validate measured timings/\n"
              "  kvsim validate measured timings/ --unseen gpu --json",
          .options = {{"calibration", 0, "PATH", false,
                       "calibration files to use (those shipped with the program)"},
                      {"unseen", 0, "WHAT", false,
                       "hide the calibrations of each row's (GPU, stack) pair, or of its gpu"},
                      {"held-out", 0, "", false, "only rows whose shapes no fit has seen"},
                      {"rows", 0, "", false, "with --json: every row with its prediction"},
                      {"out", 'o', "DIR", false, "folder for result.json, rows.csv and figures"},
                      {"markdown", 0, "", false, "print the tables of docs/accuracy.md"},
                      {"json", 0, "", false, "print JSON (schema kvsim.validate-measured/1)"}},
          .run = run_validate_measured};
}

Command validate_published_command() {
  return {.name = "validate published",
          .summary = "compare predictions with published throughputs, latencies and memory",
          .usage = "kvsim validate published FILE.csv [options]",
          .examples = "kvsim validate published results.csv -o published/",
          .options = {{"out", 'o', "DIR", false, "folder for result.json, rows.csv and figures"},
                      {"rows", 0, "", false, "every row with its prediction"},
                      {"markdown", 0, "", false, "print the tables of docs/accuracy.md"},
                      {"json", 0, "", false,
                       "print JSON (schema kvsim.validate-published/1); errors are fractions"}},
          .run = run_validate_published};
}

Command validate_served_command() {
  return {
      .name = "validate served",
      .summary = "compare simulated services with measured runs of real ones",
      .usage = "kvsim validate served RUNS.csv [options]",
      .examples =
          "kvsim validate served runs.csv\n"
          "  kvsim validate served runs.csv --json\n"
          "  kvsim validate served runs.csv --print-scenario RUN",
      .options = {{"requests", 0, "DIR", false,
                   "logs of individual requests, RUN.csv (the folder requests next to the table)"},
                  {"lengths", 0, "DIR", false,
                   "lengths of data sets (the folder lengths next to the table)"},
                  {"set", 's', "/KEY=VALUE", true, "a key of every run's scenario"},
                  {"print-scenario", 0, "RUN", false, "print a run's scenario and stop"},
                  {"two-loads", 0, "", false,
                   "calibrate each service with two of its loads (`calibrate --from-bench`) and "
                   "predict the others"},
                  {"rows", 0, "", false, "every run and value with its prediction"},
                  {"threads", 'j', "N", false, "threads (0: all of the machine)"},
                  {"out", 'o', "DIR", false, "folder for result.json, CSV files and figures"},
                  {"markdown", 0, "", false, "print the tables of docs/accuracy.md"},
                  {"json", 0, "", false,
                   "print JSON (schema kvsim.validate-served/1); errors are fractions"}},
      .run = run_validate_served};
}

}  // namespace

std::vector<Command> validate_commands() {
  return {
      // One per subcommand, in the order of the help.
      validate_allocator_command(), validate_e2e_command(),       validate_kernels_command(),
      validate_measured_command(),  validate_published_command(), validate_served_command(),
  };
}

}  // namespace kvsim
