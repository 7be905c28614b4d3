// A client that uses a run holds a locked file with its request's id, DIR/clients/NAME in the
// state's folder DIR. `flow gc` keeps finished runs that have such a mark. The mark is a file
// because the client may outlive the process that has the state open for writing; the next such
// process reads it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "flow/result.hpp"

namespace flow {

/// Owned by the handle of the run. The destructor removes the mark; live_requests() removes those
/// of processes that were killed. Not thread-safe, but threads may pass it on.
class RequestMark {
 public:
  /// Creates the mark. Call it before the request is sent, so that gc cannot remove the run in
  /// between. `request`: RunOptions::request. Returns an error of kind `environment` if the file
  /// cannot be created.
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

/// Returns the request ids of all marks that are locked, in no particular order, and deletes the
/// other marks. A mark that cannot be read is left out. On a file system without flock() the list
/// is empty.
std::vector<std::string> live_requests(const std::string& state_dir);

}  // namespace flow
