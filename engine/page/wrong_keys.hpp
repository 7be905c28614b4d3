// Rate limit for wrong keys: after kWrongMax different ones a client's keys are rejected for a
// while. Pure.
#pragma once
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "flow/digest.hpp"

namespace flow {

class WrongKeys {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr size_t kWrongMax = 10;             // different ones of a client within kWindow
  static constexpr std::chrono::seconds kWindow{60};  // begins with the first one
  static constexpr size_t kClientsMax = 1'000;        // of one more the oldest is forgotten

  /// For how long no key that the client sends is looked at; 0: it may try.
  std::chrono::seconds wait(const std::string& address, Clock::time_point now) const;
  /// A program that sends one wrong key again and again does not lock out others of its address.
  void add(const std::string& address, std::string_view key, Clock::time_point now);
  size_t clients() const { return clients_.size(); }

 private:
  struct Wrong {
    Clock::time_point since;
    std::set<Digest> keys;  // SHA-256
  };

  void forget(Clock::time_point now);

  std::map<std::string, Wrong> clients_;  // by the bytes of their network
};

}  // namespace flow
