// Frames between a client and the writer of a state, over a unix socket in the state: a length and
// a canonical value. Both sides are the same user's (the socket is 0600); what comes in is parsed
// strictly all the same.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/driver/driver.hpp"
#include "engine/driver/prepare.hpp"
#include "flow/flow.hpp"

namespace flow {

constexpr uint32_t kLinkFrameMax = 64u << 20;
constexpr uint32_t kLinkVersion = 1;

/// One connection. Sending is thread-safe; one thread receives.
class SocketLink {
 public:
  explicit SocketLink(int descriptor) : descriptor_(descriptor) {}
  ~SocketLink();
  SocketLink(const SocketLink&) = delete;
  SocketLink& operator=(const SocketLink&) = delete;

  static Result<std::unique_ptr<SocketLink>> connect(const std::string& path);
  bool send(const Value& frame);  // false when the other side is gone
  /// Error (environment) when the other side is gone, talks nonsense, or sent no whole frame within
  /// the given time; -1 waits for ever.
  Result<Value> receive(int64_t within_ms = -1);
  void shut_down();  // wakes a thread that receives
  /// The one answer of whoever listens at `path`.
  static Result<Value> ask(const std::string& path, const Value& request);

 private:
  int descriptor_;
  std::mutex sending_;
};

std::string socket_path(const std::string& state_dir);
/// Listens at `path` (0600). Unix socket names hold 107 bytes; a longer path is bound through its
/// folder's descriptor.
Result<int> listen_at(const std::string& path);

Value event_to_value(const Event& event);
Event event_from_value(const Value& value);
Value error_to_value(const Error& error);
Error error_from_value(const Value& value);
Value submission_to_value(const Submission& submission);
Result<Submission> submission_from_value(const Value& value);
Value counts_to_value(const Counts& counts);
Counts counts_from_value(const Value& value);
Value plan_to_value(const PlanInfo& plan);
PlanInfo plan_from_value(const Value& value);
Value nodes_to_value(const std::vector<NodeInfo>& nodes);
std::vector<NodeInfo> nodes_from_value(const Value& value);

// Fields of a table from outside, with what stands in for a missing or mistyped one.
std::string text_field(const Value& table, std::string_view name);
int64_t integer_field(const Value& table, std::string_view name, int64_t otherwise = 0);
double number_field(const Value& table, std::string_view name);
bool flag_field(const Value& table, std::string_view name);

}  // namespace flow
