// Child processes of an attempt: started in a group of their own, with no descriptor of ours, and
// none is left over.
#pragma once
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct Spawn {
  std::string program;             // absolute, or looked up in the environment's PATH
  std::vector<std::string> words;  // argv
  std::map<std::string, std::string> environment;
  std::string directory;
};

struct Child {
  pid_t pid = 0;  // also its process group
  int pidfd = -1;
  int out = -1, err = -1;  // read ends, non-blocking
};

/// The calling thread must live as long as the process: the child dies with it (PDEATHSIG).
Result<Child> spawn(const Spawn& what);
/// The program's path as execvp would find it, or "".
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

/// Kills and reaps every child and adopted grandchild of this process. Returns how many there were.
int kill_children();
/// Start time of a process in clock ticks since boot, or 0 where it is gone.
uint64_t start_ticks(pid_t pid);

}  // namespace flow
