// All connections of an HTTP server by what they do and since when, and the bytes that they hold.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

namespace flow {

class HttpConnection;

/// `idle`: nothing of the next request has arrived. `waiting`: a request is being answered.
/// `lingering`: the last response is sent, and what the client still sends is ignored.
enum class Phase : uint8_t { idle, head, body, waiting, writing, lingering };
constexpr std::array kAllPhases = {Phase::idle,    Phase::head,    Phase::body,
                                   Phase::waiting, Phase::writing, Phase::lingering};

/// Only the server's thread uses it, but for size().
class ConnectionTable {
 public:
  using Clock = std::chrono::steady_clock;
  using Connection = std::shared_ptr<HttpConnection>;
  /// The entry of one connection, which keeps it.
  struct Entry {
    Phase phase = Phase::idle;
    Clock::time_point since;  // when the phase began
    std::list<Connection>::iterator at;
    uint64_t bytes = 0;  // reserved
  };

  explicit ConnectionTable(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  void add(const Connection& connection);
  void enter(Entry& entry, Phase phase);
  void remove(Entry& entry);
  size_t size() const { return size_; }

  /// The connections that have been in the phase for `duration` at least.
  std::vector<Connection> lapsed(Phase phase, Clock::duration duration, Clock::time_point now);
  const std::list<Connection>& all(Phase phase) const;

  /// Whether the connection could hold so many bytes now: all together have a limit.
  bool fits(const Entry& entry, uint64_t bytes) const;
  /// Sets the bytes that the connection holds; false if they do not fit.
  bool reserve(Entry& entry, uint64_t bytes);
  /// The same without the limit, for responses.
  void hold(Entry& entry, uint64_t bytes);
  /// Whether responses have exceeded the limit.
  bool is_exceeded() const { return bytes_ > bytes_max_; }

 private:
  const uint64_t bytes_max_;
  std::array<std::list<Connection>, kAllPhases.size()> phases_;  // the oldest first
  std::atomic<size_t> size_{0};  // up to HttpLimits::connections_max
  uint64_t bytes_ = 0;
};

}  // namespace flow
