// Who has sent wrong keys and tokens of the page: after some of them, no further ones are looked at
// for a while. Pure.
#pragma once
#include <chrono>
#include <cstddef>
#include <map>
#include <string>

namespace flow {

class WrongSecrets {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kWrongMax = 10;             // of one client within kWindow
  static constexpr std::chrono::seconds kWindow{60};  // begins with the first one
  static constexpr size_t kClientsMax = 1'000;        // of one more the oldest is forgotten

  /// For how long nothing that the client sends is looked at; 0: it may try.
  std::chrono::seconds wait(const std::string& address, Clock::time_point now) const;
  void add(const std::string& address, Clock::time_point now);
  size_t clients() const { return clients_.size(); }

 private:
  struct Wrong {
    Clock::time_point since;
    size_t count = 0;
  };

  void forget(Clock::time_point now);

  std::map<std::string, Wrong> clients_;  // by the bytes of their network
};

}  // namespace flow
