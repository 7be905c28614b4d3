// A client marks each run that it uses with a locked file in the state, DIR/clients/NAME, which
// holds the id of its request: `flow gc` keeps a finished run that is marked. The client may
// outlive the writer that executed the run; the mark tells the next writer that the run is still
// used.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Owned by the handle of the run. The destructor removes the mark; live_requests() removes those
/// of processes that were killed. For any one thread.
class RequestMark {
 public:
  /// Call it before the request is sent: the run is marked from its start.
  static Result<std::unique_ptr<RequestMark>> make(const std::string& state_dir,
                                                   const std::string& request);
  ~RequestMark();
  RequestMark(const RequestMark&) = delete;
  RequestMark& operator=(const RequestMark&) = delete;

 private:
  RequestMark(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  const std::string path_;
  const int descriptor_;
};

/// The request ids of all marks whose process lives, in no particular order.
std::vector<std::string> live_requests(const std::string& state_dir);

}  // namespace flow
