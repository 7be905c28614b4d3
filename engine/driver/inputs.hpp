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
  std::vector<std::string> changed;  // hold something else now; the state has what was read
  std::vector<std::string> lost;     // files whose content neither the state nor they have any more
  std::vector<std::string> unkept;   // read in place, so that nobody has what was read any more
};

/// Looks at each input once, and reads those whose times have changed. One that is not there any
/// more is in no list if the run has its content.
InputDifferences compare_inputs(const Inputs& inputs, const Store& store, const Blobs& blobs);
/// Copies the inputs of which the state lost content again from where they were read, unless that
/// holds something else now. Not within a turn.
Status restore_inputs(const Inputs& inputs, const Store& store, Blobs& blobs);
/// The parameters for a run that takes what the files hold now. A file that is not there any more
/// is as `taken` has it, the parameters with the content that was read.
Value params_of_now(const Inputs& inputs, const Value& taken);

}  // namespace flow
