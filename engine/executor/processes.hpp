// Child processes of an attempt: started in a group of their own, with no descriptor of ours, and
// none is left over.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

struct SpawnRequest {
  std::string program;             // absolute, or looked up in the environment's PATH
  std::vector<std::string> words;  // argv
  std::map<std::string, std::string> environment;
  std::string directory;
};

struct ChildProcess {
  pid_t pid = 0;  // also its process group
  int pidfd = -1;
  int out = -1, err = -1;  // read ends, non-blocking
};

/// state/scratch/slots/PID of an executor: what it runs now, for the next writer of the state where
/// this one and its executors are killed. One line: boot id, start in clock ticks, group, folder.
class SlotFile {
 public:
  explicit SlotFile(const std::string& state_dir);
  int descriptor() const { return descriptor_; }
  /// The line without its process group, which only the child knows before its program starts.
  std::string prefix() const;
  void clear() const;

 private:
  int descriptor_ = -1;
};

/// The calling thread must live as long as the process: the child dies with it (PDEATHSIG).
/// `failed_errno` is set where the program itself could not be executed.
Result<ChildProcess> spawn(const SpawnRequest& what, const SlotFile& slot, int& failed_errno);
/// The program's path as execvp would find it, or "".
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

/// Moves this process to the control group in `folder`, on a thread: the kernel may take
/// milliseconds to do so. Where it refuses, the process stays where it is.
void join_cgroup(const std::string& folder);
/// Until that is done: what is started or used from then on is the group's. `spawn` waits as well.
/// False if the kernel refused.
bool wait_for_cgroup();

/// Kills and reaps every child and adopted grandchild of this process. Returns how many there were.
int kill_children();
/// Reaps the children that have ended. False if no child is left. This process is a subreaper, so
/// a living descendant implies a living child.
bool reap_children();
/// Whether this process has a child, ended or not. Reaps nothing.
bool has_children();

/// A descendant of this process.
struct Descendant {
  pid_t pid = 0;
  std::string command;  // its words, cut
  /// Files below the given folder that it may still write to, relative to the folder: descriptors
  /// open for writing and shared writable mappings. Empty too where the system does not tell.
  std::vector<std::string> writes;
};
/// Lists the living descendants of this process and what they may write to below `folder`. With
/// `stop` each gets SIGSTOP first, so that it opens no other file before it is killed.
std::vector<Descendant> descendants(const std::string& folder, bool stop);
/// What an attempt's children wrote to the streams that they share with us is read by the worker
/// before it hears of the attempt's end: then it knows whose it is.
void wait_until_read();

/// What this process has open now stays its own: programs that a task starts without our help
/// inherit 0, 1 and 2 alone. Libraries open sockets that would else live as long as such a program
/// does.
void keep_descriptors();

}  // namespace flow
