// The head of a pipeline's file and body, to which a test adds an error.
#pragma once
#include <string>

#include "build.hpp"

namespace flow::test {

// Lines 1 to 5; the lines of a case start at line 6.
inline const std::string kHead =
    "local flow = require 'flow'\n"
    "local count = flow.task('count', function(ctx, x) return x end)\n"
    "local align = flow.shell('align', { args = { 'reads', 'ref' }, outputs = { bam = 'out.bam' }, "
    "command = 'bwa {ref} {reads} > {outputs.bam}' })\n"
    "local web = flow.service('web', function(ctx, m) return {} end) local inner = "
    "flow.pipeline('inner', {}, function(p) end)\n"
    "return flow.pipeline('p', {}, function(p)\n";

inline std::string in_body(const std::string& lines) {
  return error_of({kHead + lines + "\nend)\n", {}, {}, {}});
}

inline std::string in_file(const std::string& lines) {
  return error_of({"local flow = require 'flow'\n" + lines, {}, {}, {}});
}

struct Case {
  const char* lines;
  const char* error;
};

}  // namespace flow::test
