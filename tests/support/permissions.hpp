#pragma once

// File permissions that also apply to root.

#include <exception>
#include <thread>

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvsim::test {

/// Runs `work` in a thread that obeys permission bits even if root runs the tests: the thread and
/// each program that it starts have no CAP_DAC_OVERRIDE and no CAP_DAC_READ_SEARCH. Errors:
/// exceptions of `work`.
template <class Work>
void under_permissions(const Work& work) {
  std::exception_ptr thrown;
  std::thread{[&] {
    // Without a smaller bounding set, a new program of root would regain them. A thread without
    // CAP_SETPCAP cannot change the set; the tests then reveal whether it obeys permissions.
    ::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
    ::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct sets[2]{};
    if (::syscall(SYS_capget, &header, sets) == 0) {
      sets[0].effective &= ~(1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH);
      ::syscall(SYS_capset, &header, sets);
    }
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  }}.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace kvsim::test
