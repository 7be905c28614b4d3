// Asks the front of a service over its socket.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/wait.hpp"
#include "engine/protocol/front.pb.h"
#include "flow/result.hpp"

namespace flow {

constexpr int64_t kFrontAnswerMs = 5000;  // a front that takes longer does not answer

/// A control connection. Each call blocks until the front has answered, for kFrontAnswerMs at most.
/// After an error the connection must not be used again.
class FrontClient {
 public:
  /// The front's socket is in `folder`.
  static Result<FrontClient> connect(const std::string& folder);
  /// With `request.warm_up` the front completes the requests of a step by warm-up requests.
  Result<front::Status> status(const front::StatusRequest& request = {});
  /// Lets in the workers of other machines. Does not wait for the front.
  Status open_gate(const front::Gate& gate);
  /// Sets the weights of its versions.
  Status set_traffic(const front::Traffic& traffic);
  /// Says that a version has ended. There is no answer. If `drain_ms` is above 0, its replicas,
  /// which no engine stops, leave within this time.
  Status forget(const std::string& version, int64_t drain_ms = 0);

 private:
  FrontClient(int descriptor, std::string folder)
      : socket_(std::make_unique<FileDescriptor>(descriptor)), folder_(std::move(folder)) {}
  Status send(const front::ToFront& message, Deadline until);
  Result<front::FromFront> ask(const front::ToFront& request);
  Error no_answer(const std::string& why) const;

  std::unique_ptr<FileDescriptor> socket_;
  std::string folder_;
};

/// What the front in this folder says about itself. No engine is needed.
Result<front::Status> front_status(const std::string& folder,
                                   const front::StatusRequest& request = {});

}  // namespace flow
