// Bytes leave in their order, however much the socket takes at a time.
#include "engine/serve/http/send_queue.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

using flow::SendQueue;

namespace {

struct Pair {
  Pair() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    int small = 4096;
    ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  }
  ~Pair() {
    ::close(ends[0]);
    if (ends[1] >= 0) ::close(ends[1]);
  }
  std::string read() const {
    std::string all;
    char chunk[1000];
    for (ssize_t got = 0; (got = ::read(ends[1], chunk, sizeof chunk)) > 0;)
      all.append(chunk, static_cast<size_t>(got));
    return all;
  }
  int ends[2] = {-1, -1};
};

}  // namespace

TEST_CASE("parts are sent in their order, also by a socket that blocks") {
  Pair pair;
  SendQueue queue;
  std::string expected, got;
  for (int i = 0; i < 40; i++) {
    std::string part(static_cast<size_t>(i * 379 % 5000), static_cast<char>('a' + i % 26));
    expected += part;
    queue.push(part);
  }
  CHECK(queue.bytes() == expected.size());
  int blocked = 0;
  while (queue.send(pair.ends[0]) == SendQueue::Outcome::blocked) {
    blocked++;
    got += pair.read();
    CHECK(got == expected.substr(0, got.size()));
    CHECK(queue.bytes() == expected.size() - got.size());
  }
  got += pair.read();
  CHECK(blocked > 0);
  CHECK(got == expected);
  CHECK(queue.is_empty());
  CHECK(queue.bytes() == 0);
}

TEST_CASE("a socket whose peer has left fails, and an empty queue is sent at once") {
  Pair pair;
  SendQueue queue;
  CHECK(queue.send(pair.ends[0]) == SendQueue::Outcome::all_sent);
  ::close(pair.ends[1]);
  pair.ends[1] = -1;
  queue.push("");
  CHECK(queue.is_empty());
  queue.push("lost");
  CHECK(queue.send(pair.ends[0]) == SendQueue::Outcome::failed);
}
