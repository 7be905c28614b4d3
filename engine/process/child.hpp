// A child process: start, watch and wait for it.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Descriptors that the child inherits; all others are closed.
struct ChildStreams {
  int in = -1;  // below 0: no input
  int out = -1, err = -1;
  std::string log{};  // instead of out and err: a file that both are appended to
};

/// Used by one thread at a time. The child has its own process group, because Ctrl-C is for the
/// parent.
class Child {
 public:
  /// argv[0] is searched in PATH. `variables` are NAME=value and replace the parent's variables of
  /// the same name.
  static Result<std::unique_ptr<Child>> spawn(std::vector<std::string> argv,
                                              const ChildStreams& streams,
                                              std::vector<std::string> variables = {});
  ~Child();  // kills the child if it was not waited for
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int descriptor() const { return pidfd_; }       // readable once the child has ended
  int64_t began_ms() const { return began_ms_; }  // by monotonic_us()
  bool ends_within(int64_t ms) const;
  void send(int signal) const;
  void kill_group() const;
  /// Waits for the end. Returns the exit code; 128 plus the signal if a signal ended the child.
  int reap();

 private:
  Child() = default;
  pid_t pid_ = 0;  // 0: already waited for
  int pidfd_ = -1;
  int64_t began_ms_ = 0;
};

}  // namespace flow
