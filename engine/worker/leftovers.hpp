// Leftover processes: those of attempts of an earlier engine, or of an executor that died.
//
// Every process of an attempt has the variable FLOW_SLOT=ID:NAME: the state's random id and the
// executor's name. If possible each executor also has a control group, which a process cannot leave
// by clearing its environment. Files in scratch/slots name both for the next writer. The working
// directory is no evidence: any process may have a scratch folder as its working directory.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/protocol/replica_record.hpp"
#include "flow/result.hpp"

namespace flow {

/// The process group of an executor's program: scratch/slots/PID, "BOOT TICKS GROUP FOLDER". The
/// number alone does not identify the group, because the kernel reuses numbers: its leader started
/// within two seconds after `start_ticks`.
struct ProgramRecord {
  std::string boot;
  uint64_t start_ticks = 0;  // after the boot
  pid_t group = 0;
};
std::optional<ProgramRecord> parse_program_record(std::string_view text);

/// The control group of an executor: scratch/slots/NAME.cgroup, "BOOT FOLDER".
struct CgroupRecord {
  std::string boot;
  std::string folder;
};
/// Nothing if the folder is not a group that an engine with this state id creates.
std::optional<CgroupRecord> parse_cgroup_record(std::string_view text, std::string_view state_id);

/// The random id of a state directory: scratch/id, "ID DEVICE INODE". A copied directory gets an id
/// of its own, so that it does not take the processes of the original for its leftovers.
Result<std::string> state_id(const std::string& state_dir);

/// Value of FLOW_SLOT and name of the control group.
std::string slot_mark(const std::string& state_id, const std::string& name);
std::string cgroup_name(std::string_view state_id, const std::string& name);
/// Call this before the executor starts. Returns false if the record cannot be written.
bool record_cgroup(const std::string& state_dir, const std::string& name,
                   const std::string& folder);

/// Removes empty groups in `parent` that engines made at least ten minutes ago and that died with
/// their states. A group in use holds its executor, so the kernel keeps it.
void remove_old_cgroups(const std::string& parent);

/// Kills all processes that attempts of an earlier engine on this state left behind, waits until
/// they have ended, and removes their containers. Spares executors that serve without an engine,
/// and returns their records.
std::vector<ReplicaRecord> kill_leftovers(const std::string& state_dir,
                                          const std::string& state_id);
/// The same for one executor that died. `cgroup` is the folder of its group, or "".
void kill_leftovers_of(const std::string& state_dir, pid_t executor, const std::string& mark,
                       const std::string& cgroup);
/// The folder of the control group that the executor of this name was given; "" if none.
std::string recorded_cgroup(const std::string& state_dir, const std::string& state_id,
                            const std::string& name);
/// Removes the executor's files and its control group.
void forget_slot(const std::string& state_dir, pid_t executor, const std::string& name,
                 const std::string& cgroup);

}  // namespace flow
