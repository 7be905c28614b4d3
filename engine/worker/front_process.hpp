// Finds or starts the front of a service, a process `flow-front` that outlives its engine.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "flow/result.hpp"

namespace flow {

struct FrontProcess {
  pid_t pid = 0;
  int pidfd = -1;       // for the caller to close
  bool is_new = false;  // the call has started it
};

/// The front that answers in this folder. If none does, starts one and does not wait until it
/// listens. It belongs to no slot and no terminal: it has a session of its own and is no child of
/// this process, and has none of its descriptors and only the environment of the machine.
Result<FrontProcess> find_or_start_front(const std::string& program, const std::string& folder,
                                         int64_t lease_ms);

/// Removes the folders of fronts that have ended, but for those of the last minute, where another
/// one may be starting.
void remove_ended_fronts(const std::string& state_dir);

/// The port at which this front listens for workers of other machines; 0: it does not, or not yet.
uint16_t read_gate_port(const std::string& folder, pid_t front);

/// Path of the program, which lies beside flow-executor.
std::string front_program(const std::string& executor);

}  // namespace flow
