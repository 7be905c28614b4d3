// A server's place at the front of its service: a fake front sees what it sends.
#include "engine/executor/wrapped/served_address.hpp"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/unix_socket.hpp"
#include "engine/protocol/frames.hpp"

using namespace flow;

namespace {

/// Accepts one replica after the other.
class FakeFront {
 public:
  FakeFront() {
    char pattern[] = "/tmp/flow-front-XXXXXX";
    folder = ::mkdtemp(pattern);
    auto listener = listen_unix(folder + "/front.sock");
    REQUIRE(listener.ok());
    listener_ = *listener;
  }
  ~FakeFront() {
    hang_up();
    ::close(listener_);
    std::filesystem::remove_all(folder);
  }
  void accept() {
    hang_up();
    peer_ = ::accept(listener_, nullptr, nullptr);
    REQUIRE(peer_ >= 0);
  }
  /// Whether the replica has closed its connection, and sent nothing more.
  bool has_ended() const {
    char byte = 0;
    return ::recv(peer_, &byte, 1, 0) == 0;
  }
  void hang_up() {
    if (peer_ >= 0) ::close(peer_);
    peer_ = -1;
    cutter_ = {};
  }
  void send(const front::FromFront& message) {
    std::string out;
    append_frame(out, message);
    REQUIRE(::send(peer_, out.data(), out.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(out.size()));
  }
  front::ToFront next() {
    front::ToFront message;
    std::string_view frame;
    bool broken = false;
    while (!cutter_.next(frame, broken)) {
      char chunk[4096];
      ssize_t got = ::recv(peer_, chunk, sizeof chunk, 0);
      REQUIRE(got > 0);
      cutter_.add({chunk, static_cast<size_t>(got)});
    }
    REQUIRE(message.ParseFromArray(frame.data(), static_cast<int>(frame.size())));
    return message;
  }
  void admit(const std::string& url) {
    front::FromFront message;
    message.mutable_admitted()->set_url(url);
    send(message);
  }
  void release() {
    front::FromFront message;
    message.mutable_released();
    send(message);
  }
  std::string folder;

 private:
  int listener_ = -1, peer_ = -1;
  FrameCutter cutter_;
};

front::Join join_of_server() {
  front::Join join;
  join.set_version("run");
  join.set_wraps_server(true);
  join.set_server("127.0.0.1:4711");
  return join;
}

/// What has happened since the last call, once there is something.
ServedAddress::News news_of(ServedAddress& served) {
  pollfd waited{served.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&waited, 1, 60'000) == 1);
  return served.take_news();
}

}  // namespace

TEST_CASE("a server joins the front, has its URL, and is released") {
  FakeFront front;
  ServedAddress served(front.folder, join_of_server());
  front.accept();
  front::ToFront first = front.next();
  CHECK(first.join().wraps_server());
  CHECK(first.join().server() == "127.0.0.1:4711");
  front.admit("http://127.0.0.1:8080");
  ServedAddress::News news = news_of(served);
  CHECK(news.url == "http://127.0.0.1:8080");
  CHECK_FALSE(news.has_ended);
  front::FromFront line;
  line.mutable_log()->add_lines("a request failed");
  front.send(line);
  CHECK(news_of(served).lines == std::vector<std::string>{"a request failed"});
  served.leave(60'000);
  CHECK(front.next().leave().grace_ms() == 60'000);
  front.release();
  news = news_of(served);
  CHECK(news.has_ended);
  CHECK_FALSE(news.has_failed);
  CHECK(news.url == "");
}

TEST_CASE("a server that the front rejects says why") {
  FakeFront front;
  ServedAddress served(front.folder, join_of_server());
  front.accept();
  front.next();
  front::FromFront message;
  message.mutable_rejected()->set_message("port 80 is in use");
  front.send(message);
  ServedAddress::News news = news_of(served);
  CHECK(news.has_ended);
  CHECK(news.has_failed);
  CHECK(news.problem.kind == ErrorKind::user);
  CHECK(news.problem.message == "port 80 is in use");
}

TEST_CASE("a server joins the next front when its front ends") {
  FakeFront front;
  ServedAddress served(front.folder, join_of_server());
  front.accept();
  front.next();
  front.admit("http://127.0.0.1:8080");
  CHECK(news_of(served).url == "http://127.0.0.1:8080");
  front.hang_up();
  front.accept();
  CHECK(front.next().join().server() == "127.0.0.1:4711");
  front.admit("http://127.0.0.1:8081");
  ServedAddress::News news = news_of(served);
  while (news.url.empty()) news = news_of(served);
  CHECK(news.url == "http://127.0.0.1:8081");
}

TEST_CASE("what the front logs about the death of a server is not lost") {
  FakeFront front;
  ServedAddress served(front.folder, join_of_server());
  front.accept();
  front.next();
  front.admit("http://127.0.0.1:8080");
  news_of(served);
  bool has_ended = false;
  std::thread front_thread([&] {
    has_ended = front.has_ended();
    front::FromFront line;
    line.mutable_log()->add_lines("a stream broke");
    front.send(line);
    front.hang_up();
  });
  CHECK(served.end().lines == std::vector<std::string>{"a stream broke"});
  front_thread.join();
  CHECK(has_ended);
}

TEST_CASE("a server that dies says nothing, and one that is stopped leaves") {
  for (bool is_stopped : {false, true}) {
    FakeFront front;
    {
      ServedAddress served(front.folder, join_of_server());
      front.accept();
      front.next();
      front.admit("http://127.0.0.1:8080");
      news_of(served);
      if (is_stopped) served.leave(0);
    }
    if (is_stopped) CHECK(front.next().leave().grace_ms() == 0);
    CHECK(front.has_ended());
  }
}
