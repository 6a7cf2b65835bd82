#include "sim/report/replay/replay_csv.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/text/csv_cells.hpp"

namespace kvsim {
namespace {

std::string optional_number(const std::optional<double>& value) {
  return value ? csv_number(*value) : "";
}

constexpr std::string_view kStepColumns =
    "step,tokens,entries_held,entries_attended,bytes_held,bytes_attended,side_bytes,bytes_read,"
    "bytes_written,extra_flops,rel_error,cosine,retained_mass,host_bytes,link_bytes,entries_read";

std::string step_fields(const ReplayStep& s) {
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", s.step, s.tokens,
                     s.entries_held, s.entries_attended, s.bytes_held, s.bytes_attended,
                     s.side_bytes, csv_number(s.bytes_read), csv_number(s.bytes_written),
                     csv_number(s.extra_flops), csv_number(s.rel_error), csv_number(s.cosine),
                     optional_number(s.retained_mass), s.host_bytes, csv_number(s.link_bytes),
                     csv_number(s.entries_read));
}

}  // namespace

std::string replay_steps_csv(const ReplayResult& replay) {
  std::string out = fmt::format("method,budget,{}\n", kStepColumns);
  for (const ReplayMethod& method : replay.methods) {
    for (const ReplayStep& s : method.series) {
      out += fmt::format("{},{},{}\n", csv_field(method.name), optional_number(method.budget),
                         step_fields(s));
    }
  }
  return out;
}

std::string replay_layer_steps_csv(const ReplayResult& replay) {
  std::string out = fmt::format("method,budget,layer,{}\n", kStepColumns);
  for (const ReplayMethod& method : replay.methods) {
    for (std::size_t layer = 0; layer < method.layer_series.size(); ++layer) {
      for (const ReplayStep& s : method.layer_series[layer]) {
        out += fmt::format("{},{},{},{}\n", csv_field(method.name), optional_number(method.budget),
                           layer, step_fields(s));
      }
    }
  }
  return out;
}

std::string replay_layers_csv(const ReplayResult& replay) {
  std::string out =
      "method,budget,layer,entries_final,bytes_final,rel_error_mean,cosine_mean,"
      "retained_mass_mean\n";
  for (const ReplayMethod& method : replay.methods) {
    for (const ReplayCell& c : method.layers) {
      out += fmt::format("{},{},{},{},{},{},{},{}\n", csv_field(method.name),
                         optional_number(method.budget), c.layer, c.entries_final, c.bytes_final,
                         csv_number(c.rel_error_mean), csv_number(c.cosine_mean),
                         optional_number(c.retained_mass_mean));
    }
  }
  return out;
}

std::string replay_methods_csv(const ReplayResult& replay) {
  std::string out =
      "method,budget,budget_reached,bytes_held_final,bytes_full_final,side_bytes_final,"
      "host_bytes_final,bytes_read_total,bytes_full_read_total,link_bytes_total,"
      "entries_read_share,rel_error_mean,rel_error_p99,cosine_mean,retained_mass_mean,"
      "best_mass_mean,oracle_mass_gap,oracle_error_ratio\n";
  for (const ReplayMethod& m : replay.methods) {
    const OracleGap gap = oracle_gap(replay, m);
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(m.name),
                       optional_number(m.budget), optional_number(m.budget_reached),
                       m.bytes_held_final, m.bytes_full_final, m.side_bytes_final,
                       m.host_bytes_final, csv_number(m.bytes_read_total),
                       csv_number(m.bytes_full_read_total), csv_number(m.link_bytes_total),
                       csv_number(m.entries_read_share), csv_number(m.rel_error_mean),
                       csv_number(m.rel_error_p99), csv_number(m.cosine_mean),
                       optional_number(m.retained_mass_mean), optional_number(m.best_mass_mean),
                       optional_number(gap.mass), optional_number(gap.error_ratio));
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
                             optional_number(method.budget), layer, head, name_of(entry.role),
                             entry.position, entries[end - 1].position, end - first, entry.members,
                             optional_number(entry.score));
          first = end;
        }
      }
    }
  }
  if (out.empty()) return out;
  return "index,method,budget,layer,head,role,first,last,entries,tokens_each,score\n" + out;
}

std::string replay_paged_csv(const ReplayResult& replay) {
  std::string out =
      "method,budget,moment,block_size,layout,logical_bytes,allocated_bytes,reclaimable_bytes,"
      "slack_bytes,entries_dropped,blocks_total,blocks_freed";
  for (const CompactionPolicy policy : kCompactionPolicies) {
    out += fmt::format(",compacted_bytes_{0},compaction_bytes_moved_{0}", name_of(policy));
  }
  out += "\n";
  for (const ReplayMethod& m : replay.methods) {
    for (const auto& [moment, r] : m.paged) {
      out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}", csv_field(m.name),
                         optional_number(m.budget), moment, r.block_size, name_of(r.layout),
                         r.logical.count(), r.allocated.count(), r.reclaimable.count(),
                         r.slack.count(), r.entries_dropped, r.blocks_total, r.blocks_freed);
      for (const PagedCompaction& to : r.compaction) {
        out += fmt::format(",{},{}", to.allocated.count(), to.bytes_moved.count());
      }
      out += "\n";
    }
  }
  return out;
}

}  // namespace kvsim
