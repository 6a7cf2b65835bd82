#include "sim/cli/validate/command_validate.hpp"

namespace kvsim {

std::vector<Command> validate_commands() {
  return {
      // One line a subcommand, in the order that help shows them.
      validate_allocator_command(), validate_e2e_command(),       validate_kernels_command(),
      validate_measured_command(),  validate_published_command(),
  };
}

}  // namespace kvsim
