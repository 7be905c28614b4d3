// One process writes a state: its lock.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Holds DIR/lock, which names host, boot id, pid and start time for people. The kernel lets go of
/// it when the process dies, however it dies, so a stale file proves itself. Released by the
/// destructor.
class StateLock {
 public:
  /// Null where another process holds it. Makes the folder (0700) where there is none.
  static Result<std::unique_ptr<StateLock>> acquire(const std::string& dir);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// Whether the state's folder is ours alone. Refused: another user's, one with content that others
/// may have written, and one that holds something else than a state. An empty one is made private.
Status own_state(const std::string& dir);
/// Returns an error that names the first of these entries of the folder that is a broken symbolic
/// link. The default is all folders that a state or a worker writes.
Status no_broken_links(const std::string& dir, std::initializer_list<const char*> parts = {
                                                   "db", "objects", "checkpoints", "scratch", "log",
                                                   "spool", "clients", "kernels"});
/// An error where the state is there and this process may not look into it.
Status readable_state(const std::string& dir);

bool state_is_locked(const std::string& dir);
/// "process 4711 on host since 2026-11-21T05:17:00Z", or "nobody".
std::string lock_holder(const std::string& dir);

}  // namespace flow
