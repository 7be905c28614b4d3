// The place of a server at the front of its service, which passes requests on to it.
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/executor/replica_link.hpp"

namespace flow {

class ServedAddress {
 public:
  /// Joins the front at `folder`. `join` names the server.
  ServedAddress(const std::string& folder, front::Join join);
  /// As end().
  ~ServedAddress();
  ServedAddress(const ServedAddress&) = delete;
  ServedAddress& operator=(const ServedAddress&) = delete;

  /// Readable if one of the functions below has something new, until take_news().
  int descriptor() const { return notice_; }
  struct News {
    std::string url{};                 // at which clients reach the server; "": as before
    std::vector<std::string> lines{};  // for the log
    bool has_ended = false;            // the front passes no request on any more
    Error problem{};                   // why, if it was not asked to
    bool has_failed = false;           // there is a problem
  };
  News take_news();
  /// Joins with this message from now on: the run has other keys.
  void renew(front::Join join);
  /// Lets the server answer the requests that it has got, for at most `grace_ms`.
  /// `is_replaced`: see ReplicaLink.
  void leave(int64_t grace_ms, bool is_replaced = false) { link_.leave(grace_ms, is_replaced); }
  /// Ends the connection. Unless the server was told to leave, the front takes this for its death,
  /// and waits for the next one. Returns the last news; only the destructor may follow.
  News end();

 private:
  ReplicaOptions options(const std::string& folder, front::Join join);
  template <typename Change>
  void tell(const Change& change);
  void run();
  void pass_on();

  const int notice_;
  std::mutex mutex_;
  News news_;
  std::optional<front::Join> renewed_{};  // not passed to the link yet
  ReplicaLink link_;
  std::thread thread_;
};

}  // namespace flow
