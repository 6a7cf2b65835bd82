#pragma once

namespace kvsim {

/// From here on SIGINT, SIGTERM and SIGHUP first remove what is under construction (see
/// models/units/temporary.hpp) and then end the program as they would have: exit statuses 130, 143
/// and 129 in a shell. One that was ignored when the program began (nohup) stays ignored.
void clean_up_on_signals();

}  // namespace kvsim
