// GET requests to a server on loopback that ask whether it is well. They never block: the caller
// polls the descriptor.
#pragma once
#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>

namespace flow {

struct HealthAnswer {
  int status = 0;    // of the response; 0: there was none
  std::string text;  // "GET /health: status 503", "GET /health: nothing listens at 127.0.0.1:8080"
  bool is_good() const { return status >= 200 && status < 300; }
};

class HealthProbe {
 public:
  explicit HealthProbe(uint16_t port) : port_(port) {}
  ~HealthProbe() { cancel(); }
  HealthProbe(const HealthProbe&) = delete;
  HealthProbe& operator=(const HealthProbe&) = delete;

  /// Begins a request, which has until then to be answered. There must be none.
  void begin(const std::string& path, int64_t until_us);
  bool has_begun() const { return has_begun_; }
  int64_t until_us() const { return until_us_; }
  /// Drops the request, if there is one.
  void cancel();
  /// To be polled, with descriptor -1 if there is nothing to wait for.
  pollfd waits_for() const;
  /// Goes on without waiting. The answer, which ends the request, or nothing yet.
  std::optional<HealthAnswer> step();

 private:
  HealthAnswer end(int status, const std::string& text);
  bool write_request();
  /// Returns true if there is no more to read.
  bool read_response();
  /// Of the response so far; 0: it has none yet, -1: it is not HTTP.
  int status() const;

  const uint16_t port_;
  std::string path_, request_, response_;
  int64_t until_us_ = 0;
  bool has_begun_ = false;
  int descriptor_ = -1;
  int failed_errno_ = 0;
};

/// A port of 127.0.0.1 that was free, and that no other executor of this machine takes meanwhile.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  /// 0: no port is free.
  uint16_t number() const { return number_; }

 private:
  bool reserve(uint16_t port);

  uint16_t number_ = 0;
  int descriptor_ = -1;
};

/// Whether something listens at the port of 127.0.0.1.
bool has_listener(uint16_t port);

}  // namespace flow
