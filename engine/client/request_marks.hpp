// A client marks each run that it uses with a locked file in the state, DIR/clients/NAME, which
// holds the id of its request. The client may outlive the writer that ran the run; the mark is how
// the next writer knows that the run is still used.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// The destructor removes the mark. live_requests() removes the marks of processes that were
/// killed.
class RequestMark {
 public:
  /// Make it before the request is sent, so that the run is marked from its first moment.
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

/// The ids of all requests that are marked, in no order.
std::vector<std::string> live_requests(const std::string& state_dir);

}  // namespace flow
