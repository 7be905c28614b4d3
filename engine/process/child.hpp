// A process that this one starts, watches, and buries.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// What a child has of its parent's descriptors: these three and no other.
struct ChildStreams {
  int in = -1;  // below 0: nothing to read
  int out = -1, err = -1;
  std::string log{};  // in place of the two: a file that both are appended to
};

/// Used by one thread at a time. In a group of its own, since Ctrl-C is for the parent.
class Child {
 public:
  /// argv[0], found in the PATH; `variables` are NAME=value, in place of the parent's of that name.
  static Result<std::unique_ptr<Child>> spawn(std::vector<std::string> argv,
                                              const ChildStreams& streams,
                                              std::vector<std::string> variables = {});
  ~Child();  // kills one that was not buried
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int descriptor() const { return pidfd_; }       // readable once it has ended
  int64_t began_ms() const { return began_ms_; }  // by monotonic_us()
  bool ends_within(int64_t ms) const;
  void send(int signal) const;
  void kill_group() const;
  /// Waits for its end. Its exit code; of one that a signal ended 128 and the signal.
  int reap();

 private:
  Child() = default;
  pid_t pid_ = 0;  // 0: buried
  int pidfd_ = -1;
  int64_t began_ms_ = 0;
};

}  // namespace flow
