// The input files of a run. A resumed run continues with the content that was read when it was
// submitted; this module finds out whether the files have changed since.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/store/store.hpp"
#include "engine/submission/source_revision.hpp"
#include "flow/value.hpp"

namespace flow {

struct Inputs {
  Value params;             // as they were given: paths of files, not their content
  std::vector<File> files;  // parameters and others, as they were read; `origin` is the path
  Value config{};           // encoded by task_configuration.hpp; nil if there was none
  std::optional<SourceRevision> revision{};  // of the script's folder
};

std::string encode_inputs(const Inputs& inputs);
Result<Inputs> decode_inputs(std::string_view bytes);
/// The inputs of the run; empty if nothing of it is kept or it was submitted from another machine.
Result<Inputs> inputs_of(const Store& store, const std::string& run);

/// Paths of differing inputs; each is in at most one list.
struct InputDifferences {
  // They differ from what the run read. The state has a copy of the old content, except for lost
  // folders.
  std::vector<std::string> changed;
  // They were copied into the state, which lost the copy, and the file differs or is gone.
  std::vector<std::string> lost;
  // They were read in place, differ or are missing now, and the state has no copy.
  std::vector<std::string> unkept;
};

/// Checks each input; reads only those whose times changed. A missing input is in no list if the
/// state has its content.
InputDifferences compare_inputs(const Inputs& inputs, const Store& store, const Blobs& blobs);
/// Copies inputs that the state lost again from their original paths, unless the files have
/// changed. Reads whole files; do not call it within a turn.
Status restore_inputs(const Inputs& inputs, const Store& store, Blobs& blobs);
/// Parameters for a run with the files' present content. A missing file stays as in `original`, the
/// parameters with the content that was read.
Value current_params(const Inputs& inputs, const Value& original);

}  // namespace flow
