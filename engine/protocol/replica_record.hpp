// Executors that serve without an engine: what an engine needs to take one over.
//
// An executor that serves has a file scratch/slots/PID.replica, and listens at replica-PID.sock in
// the folder of its front. It accepts a connection when its worker is gone. The worker of another
// engine sends one byte with a descriptor, to which the executor's stdout and stderr go from then
// on; after it the messages of executor.proto follow as on descriptor 3 of a new executor.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/protocol/executor.pb.h"
#include "flow/digest.hpp"
#include "flow/result.hpp"

namespace flow {

struct ReplicaRecord {
  std::string boot;          // the pid is valid only within it
  uint64_t start_ticks = 0;  // of the process, after the boot
  pid_t pid = 0;
  std::string slot;  // name of the executor: of its FLOW_SLOT and its control group
  std::string run;
  uint32_t unit = 0;
  Digest key;                     // of the unit
  Digest options;                 // options_of() its order
  std::vector<std::string> gpus;  // that it sees
  std::string front;              // folder
};

/// What makes an executor serve in another way, beside its key and its GPUs: the options of the
/// service, which are no part of the key. Values of the environment do not count.
Digest options_of(const wire::Start& start);

/// One line of text.
std::string encode_replica_record(const ReplicaRecord& record);
/// Nothing if the text is not a complete record.
std::optional<ReplicaRecord> parse_replica_record(std::string_view text);
/// Whether its process still runs.
bool is_alive(const ReplicaRecord& record);

constexpr const char* kReplicaSuffix = ".replica";
std::string replica_record_path(const std::string& state_dir, pid_t executor);
std::string replica_socket_path(const std::string& front, pid_t executor);
/// Removes the record of this executor, if it has one, and the socket that the record names.
void remove_replica_record(const std::string& state_dir, pid_t executor);

}  // namespace flow
