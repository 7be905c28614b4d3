// A session of a head and one of a worker, connected by queues that a test can manipulate.
#pragma once
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/session/session.hpp"

namespace flow::cluster {

constexpr int64_t kStepMs = 100;  // interval of the ticks

inline std::shared_ptr<const Secret> secret_of(uint8_t byte) {
  auto secret = std::make_shared<Secret>();
  secret->bytes.fill(byte);
  return secret;
}

inline SessionOptions options_of(Role role, std::shared_ptr<const Secret> secret = secret_of(7)) {
  SessionOptions options;
  options.role = role;
  options.name = role == Role::head ? "h1" : "w1";
  options.version = "0.1.0";
  options.schema = 3;
  options.epoch = role == Role::head ? 41 : 42;
  options.secret = std::move(secret);
  return options;
}

/// One end: its session, the frames in transit from it, and its recorded events.
struct End {
  End(const SessionOptions& options, const std::string& address) {
    SessionOutput out;
    session = std::make_unique<Session>(options, address, 0, out);
    take(std::move(out));
  }
  void take(SessionOutput out) {
    for (auto& frame : out.frames) sent.push_back(std::move(frame));
    for (auto& event : out.events) told.push_back(std::move(event));
  }
  void frame(std::string_view bytes, int64_t now_us) {
    SessionOutput out;
    session->on_frame(bytes, now_us, out);
    take(std::move(out));
  }
  void tick(int64_t now_us) {
    SessionOutput out;
    session->tick(now_us, out);
    take(std::move(out));
  }
  Status send(std::string_view message) {
    SessionOutput out;
    Status status = session->send(message, out);
    take(std::move(out));
    return status;
  }
  void end(std::string_view reason) {
    SessionOutput out;
    session->end(reason, out);
    take(std::move(out));
  }
  void link_down(const std::string& why) {
    SessionOutput out;
    session->on_link_down(environment_error(why), out);
    take(std::move(out));
  }
  /// Returns all recorded events as text and clears them.
  std::vector<std::string> events();

  std::unique_ptr<Session> session;
  std::deque<std::string> sent;
  std::vector<SessionEvent> told;
};

inline std::string words_of(const SessionEvent& event) {
  constexpr const char* kKinds[] = {"refused", "damaged", "lost", "cut", "left", "ended"};
  if (auto* opened = std::get_if<SessionOpened>(&event))
    return std::string("opened ") + role_name(opened->peer.role) + " " + opened->peer.name + " " +
           opened->peer.version + " " + std::to_string(opened->peer.epoch) +
           (opened->peer.is_proven ? " proven" : " unproven");
  if (auto* message = std::get_if<MessageReceived>(&event)) return "message " + message->bytes;
  if (auto* timeout = std::get_if<TimeoutChanged>(&event))
    return "lost after " + std::to_string(timeout->lost_after_ms) + " ms";
  if (auto* suspected = std::get_if<PeerSuspected>(&event)) return "suspected: " + suspected->why;
  if (auto* ended = std::get_if<SessionEnded>(&event))
    return std::string(kKinds[static_cast<int>(ended->kind)]) + ": " + ended->why.message;
  return "heard again";
}

inline std::vector<std::string> End::events() {
  std::vector<std::string> words;
  for (const auto& event : told) words.push_back(words_of(event));
  told.clear();
  return words;
}

struct Pair {
  Pair() : Pair(options_of(Role::head), options_of(Role::worker)) {}
  Pair(const SessionOptions& a, const SessionOptions& b)
      : head(a, "10.0.0.2:41 (tcp)"), worker(b, "10.0.0.1:77 (tcp)") {}

  /// Delivers until no frame is in transit.
  void deliver() {
    while (!head.sent.empty() || !worker.sent.empty()) {
      move(head, worker);
      move(worker, head);
    }
  }
  void move(End& from, End& to) {
    for (size_t left = from.sent.size(); left > 0; left--) {
      std::string frame = std::move(from.sent.front());
      from.sent.pop_front();
      to.frame(frame, now_us);
    }
  }
  /// Both sides run for `ms`; `between` simulates the network after each tick.
  void live(int64_t ms, const std::function<void()>& between) {
    for (; ms > 0; ms -= kStepMs) {
      now_us += kStepMs * 1000;
      head.tick(now_us);
      worker.tick(now_us);
      between();
    }
  }
  void live(int64_t ms) {
    live(ms, [this] { deliver(); });
  }
  /// Opens the session; afterwards no frame is in transit and no event is recorded.
  void open() {
    deliver();
    REQUIRE(head.session->is_open());
    REQUIRE(worker.session->is_open());
    head.events(), worker.events();
  }

  int64_t now_us = 0;
  End head, worker;
};

using Events = std::vector<std::string>;

}  // namespace flow::cluster
