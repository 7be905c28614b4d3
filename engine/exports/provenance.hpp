// The provenance of a run, from which all export formats are written: tasks, their files, and their
// dependencies.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/query/reader_impl.hpp"

namespace flow {

struct ProvenanceFile {
  std::string id;  // unique in the run, as a path: "/split/part.1", "/inputs/corpus.txt"
  File file;
  int64_t producer = -1;  // index of the task that made it; -1: an input of the run
};

struct ProvenanceTask {
  core::UnitId unit = 0;
  std::string id;  // unique in the run: "train[2]"
  TaskInfo info;   // what `flow show` says of it
  const TaskDef* definition = nullptr;
  std::string command;  // of a shell task, with the names of its files; else ""
  // Ascending indices of tasks, and indices of files.
  std::vector<uint32_t> parents, children;
  std::vector<uint32_t> inputs, outputs;
  /// Times alone do not tell: skipped, cancelled and cached tasks have times, too.
  bool has_begun() const { return info.attempts > 0 && !info.cached && info.started_ms != 0; }
  bool has_run() const { return has_begun() && info.finished_ms != 0; }
  /// What its newest attempt used, by the names of `flow show --json`; without what is not known.
  std::vector<std::pair<const char*, Value>> figures() const;
  double seconds() const;  // of its newest attempt; 0 if it did not run
};

struct Provenance {
  OpenedRun opened;
  RunInfo info;
  Bundle bundle;  // empty if the state lost it
  std::vector<ProvenanceTask> tasks;
  std::vector<ProvenanceFile> files;
  std::vector<uint32_t> inputs;   // files that no task made
  std::vector<uint32_t> results;  // files in the result
};

/// The command of a shell task, given its arguments by name, with each file as a string; "" if it
/// cannot be filled in.
using CommandText = std::function<std::string(const TaskDef&, const Value& arguments)>;

/// Throws Failed.
Provenance provenance_of(OpenedRun opened, const CommandText& command_text);

/// The files in a value, in the order of lists and then fields.
std::vector<File> listed_files(const Value& value);
/// The arguments of a shell task by name.
Value named_arguments(const TaskDef& definition, const Value& arguments, bool are_named);

}  // namespace flow
