// Processes that attempts of an earlier engine, or of an executor that died, left behind.
//
// What an attempt starts carries FLOW_SLOT=ID:NAME: the state's random id and the executor's name.
// Where a control group can be made, each executor has one of its own as well, which a process
// cannot leave by clearing its environment. The files in scratch/slots name both for the next
// writer. A working directory says nothing: anyone may stand in a scratch folder.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

/// The process group of an executor's program: scratch/slots/PID, "BOOT TICKS GROUP FOLDER". The
/// number alone does not identify it, since the kernel uses numbers again: its leader began within
/// two seconds after `start_ticks`.
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
/// Nothing where the folder is not a group that an engine over the state of this id makes.
std::optional<CgroupRecord> parse_cgroup_record(std::string_view text, std::string_view state_id);

/// The random id of a state folder: scratch/id, "ID DEVICE INODE". A folder that was copied gets an
/// id of its own, so that it does not take the processes of the original for its leftovers.
Result<std::string> state_id(const std::string& state_dir);

/// Of a name that `state_id` and a random word make: FLOW_SLOT, and the control group's name.
std::string slot_mark(const std::string& state_id, const std::string& name);
std::string cgroup_name(std::string_view state_id, const std::string& name);
/// Before the executor starts. False where it cannot be written.
bool record_cgroup(const std::string& state_dir, const std::string& name,
                   const std::string& folder);

/// Removes empty groups in `parent` that engines made at least ten minutes ago and that died with
/// their states. A group in use holds its executor, so the kernel keeps it.
void remove_old_cgroups(const std::string& parent);

/// Kills every process that an earlier engine's attempts over this state left behind, and waits for
/// their end.
void kill_leftovers(const std::string& state_dir, const std::string& state_id);
/// The same for one executor that died. `cgroup` is its group's folder, or "".
void kill_leftovers_of(const std::string& state_dir, pid_t executor, const std::string& mark,
                       const std::string& cgroup);
/// Removes the executor's files and its control group.
void forget_slot(const std::string& state_dir, pid_t executor, const std::string& name,
                 const std::string& cgroup);

}  // namespace flow
