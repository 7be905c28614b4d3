// How an executor that serves survives its worker: the worker of another engine finds it by its
// record and takes it over.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "engine/protocol/replica_record.hpp"
#include "flow/result.hpp"

namespace flow {

class Adoption {
 public:
  /// Writes the record and listens, so that a worker can connect at any time.
  static Result<std::unique_ptr<Adoption>> open(const std::string& state_dir,
                                                const ReplicaRecord& record);
  /// The engine that adopted this process has other names for what it serves. If the record cannot
  /// be written, the one before remains.
  void update(const ReplicaRecord& record) const;
  /// Removes the record and the socket.
  ~Adoption();
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  /// Call this when the worker is gone. Waits for the worker of another engine, and directs stdout
  /// and stderr to it. Returns the connection, or -1 if none came within `lease_ms`; then no other
  /// can connect.
  int await(int64_t lease_ms);

 private:
  Adoption(std::string state_dir, pid_t pid, int listener)
      : state_dir_(std::move(state_dir)), pid_(pid), listener_(listener) {}
  const std::string state_dir_;
  const pid_t pid_;
  int listener_ = -1;
};

/// The record of this process, with the fields that do not depend on what it serves.
ReplicaRecord own_replica_record(const std::string& slot_mark);

}  // namespace flow
