#pragma once

#include <string_view>

namespace kvsim {

/// From here on SIGINT, SIGTERM and SIGHUP first remove what is under construction (see
/// models/units/temporary.hpp) and then end the program as they would have: exit statuses 130, 143
/// and 129 in a shell. One that was ignored when the program began (nohup) stays ignored.
void clean_up_on_signals();

/// While it lives, such a signal first writes a line to standard error: what is left behind, and
/// how to go on with it. One at a time; at most 500 bytes of it.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::string_view line);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;
};

}  // namespace kvsim
