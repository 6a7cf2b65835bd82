#include "sim/report/replay/replay_csv.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "sim/replay/replay_metrics.hpp"
#include "sim/report/text/csv_cells.hpp"

namespace kvsim {
namespace {

std::string optional_number(const std::optional<double>& value) {
  return value ? csv_number(*value) : "";
}

constexpr std::string_view kStepColumns =
    "step,tokens,entries_held,entries_attended,bytes_held,bytes_attended,side_bytes,bytes_read,"
    "bytes_written,extra_flops,rel_error,cosine,retained_mass,host_bytes,link_bytes,entries_read";

/// The beginning of a method's lines.
std::string head_of(const ReplayMethod& method) {
  return csv_field(method.name) + "," + optional_number(method.budget);
}

}  // namespace

std::string replay_steps_csv(const ReplayResult& replay) {
  std::string out = fmt::format("method,budget,{}\n", kStepColumns);
  const auto columns = columns_of(replay_step_metrics(), kStepColumns);
  for (const ReplayMethod& method : replay.methods) {
    for (const ReplayStep& s : method.series) {
      out += fmt::format("{}{}\n", head_of(method), csv_values(columns, s));
    }
  }
  return out;
}

std::string replay_layer_steps_csv(const ReplayResult& replay) {
  std::string out = fmt::format("method,budget,layer,{}\n", kStepColumns);
  const auto columns = columns_of(replay_step_metrics(), kStepColumns);
  for (const ReplayMethod& method : replay.methods) {
    for (std::size_t layer = 0; layer < method.layer_series.size(); ++layer) {
      for (const ReplayStep& s : method.layer_series[layer]) {
        out += fmt::format("{},{}{}\n", head_of(method), replay.layer_number(layer),
                           csv_values(columns, s));
      }
    }
  }
  return out;
}

std::string replay_layers_csv(const ReplayResult& replay) {
  constexpr std::string_view kColumns =
      "layer,entries_final,bytes_final,rel_error_mean,cosine_mean,retained_mass_mean";
  std::string out = fmt::format("method,budget,{}\n", kColumns);
  const auto columns = columns_of(replay_cell_metrics(), kColumns);
  for (const ReplayMethod& method : replay.methods) {
    for (const ReplayCell& cell : method.layers) {
      out += fmt::format("{}{}\n", head_of(method), csv_values(columns, cell));
    }
  }
  return out;
}

std::string replay_methods_csv(const ReplayResult& replay) {
  constexpr std::string_view kColumns =
      "budget_reached,bytes_held_final,bytes_full_final,side_bytes_final,host_bytes_final,"
      "bytes_read_total,bytes_full_read_total,link_bytes_total,entries_read_share,rel_error_mean,"
      "rel_error_p99,cosine_mean,retained_mass_mean,best_mass_mean,oracle_mass_gap,"
      "oracle_error_ratio,answer_error_mean";
  std::string out = fmt::format("method,budget,{}\n", kColumns);
  const auto columns = columns_of(replay_metrics(), kColumns);
  for (const ReplayMethod& method : replay.methods) {
    out +=
        fmt::format("{}{}\n", head_of(method), csv_values(columns, ReplayedMethod{replay, method}));
  }
  return out;
}

std::string replay_kept_csv(const ReplayResult& replay) {
  std::string out;
  for (std::size_t m = 0; m < replay.methods.size(); ++m) {
    const ReplayMethod& method = replay.methods[m];
    for (std::size_t layer = 0; layer < method.why.size(); ++layer) {
      for (std::size_t head = 0; head < method.why[layer].size(); ++head) {
        const std::vector<KeptEntry>& entries = method.why[layer][head];
        for (std::size_t first = 0; first < entries.size();) {
          const KeptEntry& entry = entries[first];
          const auto follows = [&](std::size_t at) {
            return at < entries.size() && entry.members == 1 && entry.role != KeptRole::kScore &&
                   entries[at].role == entry.role && entries[at].members == 1 &&
                   entries[at].position == entries[at - 1].position + 1;
          };
          std::size_t end = first + 1;
          while (follows(end)) ++end;
          out += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", m, csv_field(method.name),
                             optional_number(method.budget), replay.layer_number(layer),
                             replay.head_number(layer, head, method.why[layer].size()),
                             name_of(entry.role), entry.position, entries[end - 1].position,
                             end - first, entry.members, optional_number(entry.score));
          first = end;
        }
      }
    }
  }
  if (out.empty()) return out;
  return "index,method,budget,layer,head,role,first,last,entries,tokens_each,score\n" + out;
}

std::string replay_paged_csv(const ReplayResult& replay) {
  std::string out = "method,budget";
  std::vector<const Metric<ReplayPaged>*> columns;
  for (const Metric<ReplayPaged>& metric : replay_paged_metrics()) {
    columns.push_back(&metric);
    out.append(",").append(metric.info.key);
  }
  out += "\n";
  for (const ReplayMethod& method : replay.methods) {
    for (const ReplayPaged& paged : method.paged) {
      out += fmt::format("{}{}\n", head_of(method), csv_values(columns, paged));
    }
  }
  return out;
}

}  // namespace kvsim
