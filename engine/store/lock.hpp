// The lock of a state: only one process writes to it.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>

#include "flow/result.hpp"

namespace flow {

/// Holds DIR/lock, which names host, boot id, pid and start time for users. The kernel releases the
/// lock when the process ends in any way, so there is no stale lock. The destructor releases it.
class StateLock {
 public:
  /// Null if another process holds the lock. Creates a missing folder (0700).
  static Result<std::unique_ptr<StateLock>> acquire(const std::string& dir);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// Checks that the state directory is private. Rejects one that belongs to another user, that
/// others may have written to, or that is not a state. Makes an empty one private.
Status own_state(const std::string& dir);
/// Returns an error that names the first of these entries of the folder that is a broken symbolic
/// link. The default is all folders that a state or a worker writes.
Status no_broken_links(const std::string& dir, std::initializer_list<const char*> parts = {
                                                   "db", "objects", "checkpoints", "scratch", "log",
                                                   "spool", "clients", "kernels", "downloads"});
/// Error if the state exists and this process may not read it.
Status readable_state(const std::string& dir);

bool state_is_locked(const std::string& dir);
/// "process 4711 on host since 2026-11-21T05:17:00Z", or "nobody".
std::string lock_holder(const std::string& dir);

}  // namespace flow
