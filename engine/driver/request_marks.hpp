// Requests that a process still uses the run of, as files in the state: DIR/clients/NAME, held for
// as long. A client outlives the writer that carried its run out, and the next writer knows of it
// by this alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Removed with this object; that of a process that was killed by the next live_requests().
class RequestMark {
 public:
  /// Made before the request is sent, so that no moment is left at which a run of it has none.
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

/// The requests of all processes, in no order.
std::vector<std::string> live_requests(const std::string& state_dir);

}  // namespace flow
