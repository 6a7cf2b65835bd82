// Decode attention and MLA compared with published timings that no fit has used.

#include <algorithm>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/check.hpp"
#include "validation/measured/kernel_accuracy.hpp"

namespace kvsim {
namespace {

std::vector<MeasuredFile> timings(const std::filesystem::path& data, std::string_view file) {
  std::vector<MeasuredFile> files;
  files.push_back(read_measured(data / "measured" / file));
  return files;
}

/// MAPE, and the largest error.
struct Gates {
  double pooled;
  double group;  // of every GPU, stack and format separately
  double worst;  // of any row
};

/// Checks groups of the rows that `keep` selects against the gates. Returns the number of groups.
template <class Keep>
int hold(const std::vector<MeasuredFile>& files, Unseen unseen, const Gates& gates, Keep&& keep) {
  std::vector<PredictedRow> rows = predict(files, KernelLibrary::builtin(), unseen);
  std::erase_if(rows, [&](const PredictedRow& row) { return !row.held_out || !keep(row); });
  int groups = 0;
  double max = 0;
  for (const AccuracyGroup& g : group_rows(rows)) {
    CHECK_MESSAGE(g.all.mape < (g.gpu.empty() ? gates.pooled : gates.group), g.op, " ", g.gpu, " ",
                  g.stack, " ", g.dtype);
    CHECK_MESSAGE(g.all.worst_ape < gates.worst, g.op, " ", g.gpu, " ", g.stack, " ", g.dtype);
    max = std::max(max, g.gpu.empty() ? 0 : g.all.mape);
    if (g.gpu.empty()) {
      fmt::print("{}: {} rows, MAPE {:.1f} %, of a group up to {:.1f} %, worst {:.1f} %\n", g.op,
                 g.all.n, 100 * g.all.mape, 100 * max, 100 * g.all.worst_ape);
    } else {
      ++groups;
    }
  }
  return groups;
}

bool compute_bound_cache(const PredictedRow& row) { return row.row->format.stored_bytes < 2; }

TEST_CASE("decode attention: head counts not used in any fit") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = timings(*data, "attention_decode.csv");
  CHECK(hold(files, Unseen::kNothing, {.pooled = 0.08, .group = 0.13, .worst = 0.60},
             [](const PredictedRow& row) { return !compute_bound_cache(row); }) >= 8);
  CHECK(hold(files, Unseen::kNothing, {.pooled = 0.10, .group = 0.16, .worst = 0.5},
             compute_bound_cache) >= 7);
}

TEST_CASE("decode attention: a GPU predicted from another card with the same chip") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = timings(*data, "attention_decode.csv");
  const auto sibling = [](const PredictedRow& row) {
    return row.basis == KernelBasis::kSibling && row.row->gpu->silicon == "H100" &&
           row.row->stack.find("sglang") == std::string::npos;  // H200 was not timed under SGLang
  };
  CHECK(hold(files, Unseen::kGpu, {.pooled = 0.08, .group = 0.12, .worst = 0.8}, sibling) >= 12);
}

TEST_CASE("MLA: head counts not used in any fit") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto files = timings(*data, "mla_attention.csv");
  CHECK(hold(files, Unseen::kNothing, {.pooled = 0.12, .group = 0.17, .worst = 0.989},
             [](const PredictedRow&) { return true; }) >= 10);
}

}  // namespace
}  // namespace kvsim
