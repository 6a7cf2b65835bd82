// Functions that the page calls in WebAssembly. Text is passed through the module's memory, as
// UTF-8: the caller allocates a buffer, writes a scenario to it, calls, and reads the answer.

#include <cstddef>
#include <exception>
#include <string>

#include "models/units/error.hpp"
#include "sim/explorer/explore.hpp"

namespace {

std::string& question() {
  static std::string text;
  return text;
}
std::string& reply() {
  static std::string text;
  return text;
}

enum Question : int { kRun = 0, kReach = 1, kCatalogue = 2, kLaunch = 3, kLog = 4, kCompare = 5 };
enum Status : int { kAnswered = 0, kWrongInput = 1, kBroken = 2 };

nlohmann::ordered_json answer(int what) {
  switch (what) {
    case kRun:
      return kvsim::explore_run(question());
    case kReach:
      return kvsim::explore_reach(question());
    case kLaunch:
      return kvsim::explore_launch(question());
    case kLog:
      return kvsim::explore_log(question());
    case kCompare:
      return kvsim::explore_compare(question());
    default:
      return kvsim::explorer_catalogue();
  }
}

}  // namespace

extern "C" {

/// Buffer for the `size` bytes of the next question.
char* kvsim_room(std::size_t size) {
  question().resize(size);
  return question().data();
}

/// Runs the call. Returns 0 if the answer is a JSON document, 1 if it is the text of an error in
/// the scenario, 2 if it is the text of an internal error.
int kvsim_ask(int what) {
  try {
    reply() = answer(what).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return kAnswered;
  } catch (const kvsim::InputError& error) {
    reply() = error.what();
    return kWrongInput;
  } catch (const std::exception& error) {
    reply() = error.what();
    return kBroken;
  }
}

const char* kvsim_answer() { return reply().data(); }
std::size_t kvsim_answer_size() { return reply().size(); }

}  // extern "C"
