// Where the inputs of a run were read. A run that is taken up again goes on with the content that
// was read then; this tells whether the files hold something else now.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/store/store.hpp"
#include "flow/value.hpp"

namespace flow {

struct Inputs {
  Value params;             // as they were given: with the paths of files, not their content
  std::vector<File> files;  // parameters and others, as they were read; `origin` is the path
};

std::string encode_inputs(const Inputs& inputs);
Result<Inputs> decode_inputs(std::string_view bytes);
/// Those of the run; empty where it read none, or was submitted from another machine.
Result<Inputs> inputs_of(const Store& store, const std::string& run);

/// Paths, each in one of the lists at most.
struct InputDifferences {
  // They differ from what the run read; the state has a copy of that, unless it lost a folder's.
  std::vector<std::string> changed;
  // Files that were copied into the state, which lost the copy; the file differs or is gone.
  std::vector<std::string> lost;
  // They were read in place and now differ or are missing; the state has no copy.
  std::vector<std::string> unkept;
};

/// Checks each input once; reads only those whose times changed. A missing input is in no list if
/// the state has its content.
InputDifferences compare_inputs(const Inputs& inputs, const Store& store, const Blobs& blobs);
/// If the state lost the content of an input, copies it again from where it was read, unless that
/// has changed. It reads and copies whole files, so do not call it within a turn.
Status restore_inputs(const Inputs& inputs, const Store& store, Blobs& blobs);
/// The parameters for a run that takes what the files hold now. A file that is not there any more
/// is as `original` has it, the parameters with the content that was read.
Value current_params(const Inputs& inputs, const Value& original);

}  // namespace flow
