// Child processes of an attempt: they run in a process group of their own, inherit no descriptor of
// the executor, and none outlives the attempt.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "flow/result.hpp"
#include "lua/graph/plain_command.hpp"

namespace flow {

struct SpawnRequest {
  std::string program;             // absolute, or looked up in the environment's PATH
  std::vector<std::string> words;  // argv
  std::map<std::string, std::string> environment;
  std::string directory;
  std::vector<Redirection> redirections;  // relative to the directory
};

struct ChildProcess {
  pid_t pid = 0;  // also its process group
  int pidfd = -1;
  int out = -1, err = -1;  // read ends, non-blocking
  // Executed in place of a shell that would have waited for it and ended with 128 + its signal.
  bool replaces_shell = false;
};

/// The file scratch/slots/PID in the state directory: what the executor runs now, so that the next
/// writer can kill leftovers if this one and its executors are killed. One line: boot id, start
/// time in clock ticks, process group, folder.
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

/// Starts a child. The calling thread must live as long as the process, because the child dies with
/// it (PDEATHSIG). Sets `failed_errno` if the program could not be executed, or if a redirection
/// failed or names a file that may block, such as a FIFO, or one of /proc.
Result<ChildProcess> spawn(const SpawnRequest& what, const SlotFile& slot, int& failed_errno);
/// The program's path as execvp would find it, or "".
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

/// Moves this process to the control group in `folder`, on a thread, because the kernel may take
/// milliseconds. If that fails, the process stays where it is.
void join_cgroup(const std::string& folder);
/// Waits for join_cgroup: processes and memory count for the group from then on. `spawn` waits too.
/// Returns false if joining failed.
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
  std::string command;  // its words, with blanks between them
  /// Files below the given folder that it can still write to, relative to the folder: descriptors
  /// open for writing and shared writable mappings. Also empty if the system does not show them.
  std::vector<std::string> writes;
};
/// Lists the living descendants of this process and what they may write to below `folder`. With
/// `stop` each gets SIGSTOP first, so that it opens no other file before it is killed.
std::vector<Descendant> descendants(const std::string& folder, bool stop);
/// Waits until the worker has read what the attempt's children wrote to the shared streams, so that
/// it is attributed to this attempt.
void wait_until_read();

/// Marks all open descriptors but 0, 1 and 2 as close-on-exec, so that programs that a task starts
/// itself do not keep the sockets of libraries open.
void keep_descriptors();

}  // namespace flow
