// kvsim validate allocator: the model of PyTorch's caching allocator against a recorded run.

#include <cmath>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "models/units/units_parse.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/report/catalogue/describe_text.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "validation/allocator/allocator_replay.hpp"
#include "validation/allocator/allocator_trace.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr Bytes kUnlimited = Bytes{std::int64_t{1} << 50};  // if the device size is unknown

std::optional<Bytes> bytes_option(const Arguments& arguments, std::string_view option) {
  const auto text = arguments.value(option);
  if (!text) return std::nullopt;
  if (const auto plain = parse_integer(*text); plain && *plain >= 0) return Bytes{*plain};
  const auto bytes = parse_bytes(*text);
  if (!bytes) {
    throw InputError{fmt::format("--{}", option), "a size such as \"80 GiB\" or a number of bytes",
                     fmt::format("\"{}\"", *text)};
  }
  return bytes;
}

struct Setting {
  AllocatorDevice device;
  bool limited = false;
  std::string conf;
  AllocatorConfig config;
};

Setting setting_of(const Arguments& arguments, const AllocatorTrace& trace,
                   const std::string& file) {
  Setting out;
  const auto total = bytes_option(arguments, "device-bytes");
  const auto outside = bytes_option(arguments, "outside-bytes");
  out.limited = total || trace.device_bytes;
  out.device.total = total ? *total : trace.device_bytes.value_or(kUnlimited);
  out.device.outside = outside ? *outside : trace.offloaded_bytes.value_or(Bytes{});
  if (out.device.outside > out.device.total) {
    throw InputError{fmt::format("{}: {} B of a device of {} B are taken outside", file,
                                 out.device.outside.count(), out.device.total.count())};
  }
  const auto conf = arguments.value("alloc-conf");
  out.conf = conf ? *conf : trace.alloc_conf;
  out.config = parse_alloc_conf(out.conf, conf ? "--alloc-conf" : file + ": /alloc_conf");
  return out;
}

ordered_json document(const AllocatorTrace& trace, const Setting& setting,
                      const AllocatorReplay& replay) {
  ordered_json out{{"schema", "kvsim.validate-allocator/1"},
                   {"source", trace.source},
                   {"alloc_conf", setting.conf},
                   {"device_bytes", nullptr},
                   {"outside_bytes", setting.device.outside.count()},
                   {"events", replay.events},
                   {"allocations", replay.allocations},
                   {"frees", replay.frees},
                   {"quantities", ordered_json::array()},
                   {"segment_allocs",
                    {{"recorded", replay.recorded_segment_allocs},
                     {"predicted", replay.predicted_segment_allocs}}},
                   {"segment_frees",
                    {{"recorded", replay.recorded_segment_frees},
                     {"predicted", replay.predicted_segment_frees}}},
                   {"refusals",
                    {{"recorded", replay.recorded_refusals},
                     {"predicted", replay.predicted_refusals},
                     {"at_the_same_event", replay.agreed_refusals}}},
                   {"first_refusal", nullptr}};
  if (setting.limited) out["device_bytes"] = setting.device.total.count();
  if (replay.first_refusal) out["first_refusal"] = *replay.first_refusal;
  for (const ReplayedQuantity& q : replay.quantities) {
    out["quantities"].push_back({{"name", q.name},
                                 {"compared", q.compared},
                                 {"exact", q.exact},
                                 {"mean_abs_error", q.mean_abs_error},
                                 {"worst_error", q.worst_error},
                                 {"worst_line", q.worst_line},
                                 {"recorded_peak", q.recorded_peak},
                                 {"predicted_peak", q.predicted_peak},
                                 {"recorded_final", q.recorded_final},
                                 {"predicted_final", q.predicted_final},
                                 {"peak_error", q.peak_error()}});
  }
  const AllocatorStats& end = replay.final_stats;
  out["final"] = {{"allocated_bytes", end.allocated.count()},
                  {"reserved_bytes", end.reserved.count()},
                  {"allocated_peak_bytes", end.allocated_peak.count()},
                  {"reserved_peak_bytes", end.reserved_peak.count()},
                  {"inactive_split_bytes", end.inactive_split.count()},
                  {"largest_free_bytes", end.largest_free.count()},
                  {"segments", end.segments},
                  {"retries", end.retries},
                  {"fragmentation", end.fragmentation()}};
  out["notes"] = replay.notes;
  return out;
}

std::string amount(const ReplayedQuantity& q, double value) {
  if (q.name == "segments") return fmt::format("{:.6g}", value);
  const Bytes size{static_cast<std::int64_t>(std::llround(std::abs(value)))};
  return fmt::format("{}{}", value < 0 ? "-" : "", to_text(size));
}

std::string text(const AllocatorTrace& trace, const Setting& setting, const AllocatorReplay& replay,
                 std::size_t width) {
  std::string out = fmt::format("{} events, {} allocations{}\n", with_commas(replay.events),
                                with_commas(replay.allocations),
                                trace.source.empty() ? "" : fmt::format(" ({})", trace.source));
  Facts facts;
  facts.add("device", setting.limited ? to_text(setting.device.total) : "of no known size");
  facts.add("settings", setting.conf.empty() ? "PyTorch's defaults" : setting.conf);
  const auto counts = [](std::int64_t recorded, std::int64_t predicted) {
    return fmt::format("{} recorded, {} predicted", with_commas(recorded), with_commas(predicted));
  };
  if (trace.has_segments) {
    facts.add("segments taken",
              counts(replay.recorded_segment_allocs, replay.predicted_segment_allocs));
    facts.add("given back", counts(replay.recorded_segment_frees, replay.predicted_segment_frees));
  }
  facts.add("refusals", fmt::format("{}, {} at the same event",
                                    counts(replay.recorded_refusals, replay.predicted_refusals),
                                    replay.agreed_refusals));
  out += facts.str(width);
  if (!replay.quantities.empty()) {
    Table table{{{"quantity", Table::Align::kLeft},
                 {"events"},
                 {"exact"},
                 {"mean error"},
                 {"worst"},
                 {"at line"},
                 {"recorded peak"},
                 {"predicted"},
                 {"error"}}};
    for (const ReplayedQuantity& q : replay.quantities) {
      const double share = static_cast<double>(q.exact) / static_cast<double>(q.compared);
      table.add_row({q.name, with_commas(q.compared), fmt::format("{:.2f} %", 100 * share),
                     amount(q, q.mean_abs_error), amount(q, q.worst_error),
                     q.worst_line == 0 ? "-" : fmt::format("{}", q.worst_line),
                     amount(q, static_cast<double>(q.recorded_peak)),
                     amount(q, static_cast<double>(q.predicted_peak)),
                     fmt::format("{:+.2f} %", 100 * q.peak_error())});
    }
    out += "\n" + table.str(width);
  }
  const AllocatorStats& end = replay.final_stats;
  out += fmt::format(
      "\nat the end: {} allocated, {} reserved, largest free block {}, fragmentation {:.3f}\n",
      to_text(end.allocated), to_text(end.reserved), to_text(end.largest_free),
      end.fragmentation());
  if (replay.first_refusal) {
    out += fmt::format("first refusal predicted, {}\n", *replay.first_refusal);
  }
  for (const std::string& note : replay.notes) out += fmt::format("note: {}\n", note);
  return out;
}

}  // namespace

int run_validate_allocator(const Arguments& arguments) {
  arguments.expect_words(1, 1, "an allocation trace");
  const std::string& file = arguments.words().front();
  const auto tolerance = arguments.number("tolerance", 0, 10);
  const AllocatorTrace trace = read_allocator_trace(file);
  const Setting setting = setting_of(arguments, trace, file);
  const AllocatorReplay replay = replay_allocations(trace, setting.device, setting.config);
  write_out(arguments.has("json") ? to_file_text(document(trace, setting, replay))
                                  : text(trace, setting, replay, terminal_width()));
  if (tolerance) {
    if (replay.quantities.empty()) {
      throw InputError{fmt::format("{}: --tolerance: nothing was recorded to compare with", file)};
    }
    for (const ReplayedQuantity& q : replay.quantities) {
      if (std::abs(q.peak_error()) > *tolerance) return kDoesNotFit;
    }
    if (replay.agreed_refusals != replay.recorded_refusals ||
        replay.agreed_refusals != replay.predicted_refusals) {
      return kDoesNotFit;
    }
  }
  return kDone;
}

}  // namespace kvsim
