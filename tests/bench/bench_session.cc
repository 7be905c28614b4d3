// The cost of a session: a message sealed and opened, compared with libsodium alone on the same
// bytes, and a sealed put, compared with memcpy of it. Times are in microseconds.
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/cluster/session/session.hpp"
#include "tests/bench/bench.hpp"

namespace flow::bench {
namespace {

using namespace cluster;

constexpr int kRounds = 15;
constexpr size_t kSizes[] = {256, 64 << 10};
constexpr size_t kBytesPerRound = 8 << 20;

// The best of each, in turns, because other work on the machine varies.
std::vector<double> best_us(const std::vector<std::function<void(int)>>& works, int times) {
  std::vector<double> best(works.size(), 1e9);
  for (int round = 0; round < kRounds; round++) {
    for (size_t i = 0; i < works.size(); i++) {
      double began = seconds();
      works[i](times);
      best[i] = std::min(best[i], (seconds() - began) / times * 1e6);
    }
  }
  return best;
}

struct Sides {
  Sides() {
    SessionOptions options;
    options.name = "h1";
    options.role = Role::head;
    options.secret = std::make_shared<const Secret>(random_key());
    SessionOutput head_out, worker_out;
    head = std::make_unique<Session>(options, "head", 0, head_out);
    options.role = Role::worker;
    worker = std::make_unique<Session>(options, "worker", 0, worker_out);
    for (size_t i = 0; i < 3; i++) {
      if (i < worker_out.frames.size()) head->on_frame(worker_out.frames[i], 0, head_out);
      if (i < head_out.frames.size()) worker->on_frame(head_out.frames[i], 0, worker_out);
    }
    FLOW_CHECK(head->is_open() && worker->is_open());
  }
  std::unique_ptr<Session> head, worker;
};

// libsodium's stream alone, into allocated memory.
struct Raw {
  explicit Raw(size_t size) : sealed(size + kSealBytes), opened(size) {
    unsigned char key[crypto_secretstream_xchacha20poly1305_KEYBYTES],
        header[crypto_secretstream_xchacha20poly1305_HEADERBYTES];
    crypto_secretstream_xchacha20poly1305_keygen(key);
    crypto_secretstream_xchacha20poly1305_init_push(&push, header, key);
    crypto_secretstream_xchacha20poly1305_init_pull(&pull, header, key);
  }
  void seal(const std::string& message) {
    crypto_secretstream_xchacha20poly1305_push(
        &push, sealed.data(), nullptr, reinterpret_cast<const unsigned char*>(message.data()),
        message.size(), nullptr, 0, 0);
  }
  void open() {
    unsigned char tag;
    FLOW_CHECK(crypto_secretstream_xchacha20poly1305_pull(&pull, opened.data(), nullptr, &tag,
                                                          sealed.data(), sealed.size(), nullptr,
                                                          0) == 0);
  }
  crypto_secretstream_xchacha20poly1305_state push, pull;
  std::vector<unsigned char> sealed, opened;
};

void messages(size_t size) {
  int times = static_cast<int>(kBytesPerRound / std::max<size_t>(size, 1024));
  std::string message(size, 'm');
  Sides sides;
  Raw raw(size), sealing(size);
  std::vector<std::string> frames;
  auto seal = [&](int count) {
    frames.clear();
    for (int i = 0; i < count; i++) {
      SessionOutput out;
      FLOW_CHECK(sides.worker->send(message, out).ok());
      frames.push_back(std::move(out.frames[0]));
    }
  };
  auto open = [&](int) {
    for (const std::string& frame : frames) {
      SessionOutput out;
      sides.head->on_frame(frame, 0, out);
      FLOW_CHECK(out.events.size() == 1);
    }
  };
  auto both = [&](int count) {
    for (int i = 0; i < count; i++) raw.seal(message), raw.open();
  };
  auto raw_seal = [&](int count) {
    for (int i = 0; i < count; i++) sealing.seal(message);
  };
  auto best = best_us({seal, open, raw_seal, both}, times);
  std::string bytes = std::to_string(size);
  figure("session_seal_us_" + bytes, best[0], "sodium_us", best[2]);
  figure("session_seal_open_us_" + bytes, best[0] + best[1], "sodium_us", best[3]);
}

void puts() {
  constexpr size_t kSize = 1 << 20;
  BulkSeal there(random_key(), random_key());
  std::string data(kSize + kBulkSealBytes, 'd'), copied = data;
  auto best = best_us({[&](int count) {
                         for (int i = 0; i < count; i++) there.seal(1, data.data(), kSize);
                       },
                       [&](int count) {
                         for (int i = 0; i < count; i++) {
                           std::memcpy(copied.data(), data.data(), kSize);
                           asm volatile("" ::"r"(copied.data()) : "memory");
                         }
                       }},
                      8);
  figure("put_seal_us_1048576", best[0], "memcpy_us", best[1]);
}

}  // namespace
}  // namespace flow::bench

int main() {
  for (size_t size : flow::bench::kSizes) flow::bench::messages(size);
  flow::bench::puts();
}
