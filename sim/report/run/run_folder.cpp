#include "sim/report/run/run_folder.hpp"

#include <string>

#include "sim/report/batch/static_csv.hpp"
#include "sim/report/replay/replay_folder.hpp"
#include "sim/report/run/run_figures.hpp"
#include "sim/report/run/run_page.hpp"
#include "sim/report/service/serve_csv.hpp"
#include "sim/report/service/serve_events.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
ResultsFolder write_run_results(const RunReport& report, nlohmann::ordered_json document,
                                const std::filesystem::path& folder, const FolderOptions& options) {
  AtomicFolder building{folder};
  const FigureSet figures = run_figures(report);
  ResultsFolder out =
      draw_into(building, wanted_figures(figures, *report.scenario), folder, options);
  for (const std::string& note : out.notes) document["notes"].push_back(note);
  // A page has all figures, because they need no drawing.
  if (options.page) write_page(building, run_page(report, document, figures), out);
  building.write("result.json", to_file_text(document));
  if (report.scenario->kind == "serve") {
    building.write("points.csv", serve_points_csv(document));
    building.write("requests.csv", requests_csv(report));
    building.write("timeline.csv", serve_timeline_csv(report));
    building.write("timeline.json", serve_events_json(report));
  } else {
    building.write("points.csv", points_csv(document));
    building.write("timeline.csv", timeline_csv(report));
    building.write("owners.csv", owners_csv(report));
    building.write("time_terms.csv", time_terms_csv(report));
    building.write("layers.csv", layers_csv(report));
  }
  if (report.replay) write_replay_tables(building, *report.replay);
  building.commit();
  return out;
}

}  // namespace kvsim
