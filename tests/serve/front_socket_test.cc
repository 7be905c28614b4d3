// Peers at the socket of a front: what they may send, and what becomes of others.
#include "engine/front/front_socket.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/plan/plan.hpp"
#include "engine/serve/memory/front_memory.hpp"
#include "socket_peer.hpp"

using namespace flow;
using Catch::Contains;

namespace {

/// A front in this process, with its socket.
class SocketFront {
 public:
  SocketFront() : folder_(make_temporary_folder()) {
    REQUIRE(folder_.ok());
    auto log = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      logged_.push_back(line);
    };
    auto started = Front::start(loop_, {.log = log});
    REQUIRE(started.ok());
    front_ = std::move(*started);
    socket_ = std::make_unique<FrontSocket>(*front_, loop_, log);
    FileDescriptor folder(::open((*folder_)->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(socket_->listen(folder.number, "front.sock").ok());
    path = **folder_ + "/front.sock";
  }
  ~SocketFront() { loop_.stop(); }

  void wait_peers(size_t count) {
    size_t there = count + 1;
    while (there != count) loop_.run([&] { there = socket_->peers(); });
  }
  std::vector<std::string> logged() {
    std::lock_guard lock(mutex_);
    return logged_;
  }

  std::string path;

 private:
  Result<std::shared_ptr<const std::string>> folder_;
  std::mutex mutex_;
  std::vector<std::string> logged_;
  EventLoop loop_{"flow-http", {}};
  std::unique_ptr<Front> front_;
  std::unique_ptr<FrontSocket> socket_;
};

/// The port that a replica got from the front.
int join_at(SocketPeer& peer, const std::string& version = "r1") {
  REQUIRE(peer.join(version));
  front::FromFront answer = peer.read();
  REQUIRE(answer.has_admitted());
  CHECK(answer.admitted().pid() == ::getpid());
  return port_of(answer.admitted().url());
}

/// Answers the next batch, and returns how many rows it had.
int64_t answer_batch(SocketPeer& peer) {
  auto batch = parse_batch(peer.read_frame());
  REQUIRE(batch.ok());
  REQUIRE(batch->has_value());
  REQUIRE(peer.send(outcome_frame((*batch)->id, add_one((*batch)->inputs))));
  return rows_of((*batch)->inputs);
}

std::string announced(uint32_t size, const std::string& bytes = "") {
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes;
}

std::string frame_of(const front::ToFront& message) {
  std::string frame;
  append_frame(frame, message);
  return frame;
}

}  // namespace

TEST_CASE("a replica at the socket answers requests, small and large ones") {
  SocketFront front;
  struct stat status {};
  REQUIRE(::stat(front.path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  SocketPeer replica(front.path);
  Client client(join_at(replica));
  client.send(post_text(kInfer, infer_body("x", 1)));
  CHECK(answer_batch(replica) == 1);
  CHECK(first_number(client.read()) == 2);
  const size_t count = 4 << 20;
  const std::string json = R"({"inputs":[{"name":"x","shape":[1,)" + std::to_string(count) +
                           R"(],"datatype":"FP32","parameters":{"binary_data_size":)" +
                           std::to_string(count * 4) +
                           R"(}}],"outputs":[{"name":"x","parameters":{"binary_data":true}}]})";
  client.send(
      post_text(kInfer, json + std::string(count * 4, '\0'),
                "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n"));
  CHECK(answer_batch(replica) == 1);
  Reply reply = client.read();
  CHECK(reply.status == 200);
  float last = 0;
  std::memcpy(&last, reply.body.data() + reply.body.size() - sizeof last, sizeof last);
  CHECK(last == 1);
  client.send(post_text(kInfer, infer_body("boom", 1)));
  CHECK(answer_batch(replica) == 1);
  CHECK(client.read().status == 500);
  front::FromFront line = replica.read();
  REQUIRE(line.log().lines_size() == 1);
  CHECK(line.log().lines(0) == "request failed: boom: predict failed");
}

TEST_CASE("a batch of several requests arrives joined, and its answer is split") {
  SocketFront front;
  SocketPeer replica(front.path);
  int port = join_at(replica);
  Client first(port), second(port), third(port);
  first.send(post_text(kInfer, infer_body("x", 1)));
  Bytes frame = replica.read_frame();
  second.send(post_text(kInfer, infer_body("x", 2)));
  third.send(post_text(kInfer, infer_body("x", 3)));
  auto queued = [&] {
    return request(port, "GET", "/metrics")
               .body.find("queue_length{model=\"adder\",version=\"r1\"} 2") != std::string::npos;
  };
  while (!queued()) std::this_thread::yield();
  auto batch = parse_batch(frame);
  replica.send(outcome_frame((*batch)->id, add_one((*batch)->inputs)));
  CHECK(answer_batch(replica) == 2);
  CHECK(first_number(first.read()) == 2);
  CHECK(first_number(second.read()) == 3);
  CHECK(first_number(third.read()) == 4);
}

TEST_CASE("a replica that leaves is released, and the end of its connection is no fault") {
  SocketFront front;
  SocketPeer one(front.path), two(front.path);
  join_at(one);
  join_at(two);
  front::ToFront leave;
  leave.mutable_leave()->set_grace_ms(1000);
  REQUIRE(one.send(leave));
  CHECK(one.read().has_released());
  one.close();
  front.wait_peers(1);
  CHECK(front.logged().empty());
}

TEST_CASE("a replica that is rejected learns why, and its connection ends") {
  SocketFront front;
  SocketPeer one(front.path), two(front.path), three(front.path);
  int port = join_at(one);
  front::ToFront message;
  message.mutable_join()->set_version("r2");
  message.mutable_join()->set_model("adder");
  message.mutable_join()->set_port(static_cast<uint32_t>(port == 1 ? 2 : port - 1));
  REQUIRE(two.send(message));
  CHECK_THAT(two.read().rejected().message(), Contains("another `listen`"));
  CHECK(two.is_at_end());
  message.mutable_join()->set_service("garbage");
  REQUIRE(three.send(message));
  CHECK_THAT(three.read().rejected().message(), Contains("cannot join"));
  CHECK(three.is_at_end());
}

TEST_CASE("an engine sets the weights and asks for the status") {
  SocketFront front;
  SocketPeer engine(front.path), one(front.path), two(front.path);
  front::ToFront control, traffic, status;
  control.mutable_control();
  REQUIRE(engine.send(control));
  join_at(one, "r1");
  join_at(two, "r2");
  front::Weight& weight = *traffic.mutable_traffic()->add_weights();
  weight.set_version("r2");
  weight.set_percent(100);
  traffic.mutable_traffic()->set_measured("r2");
  REQUIRE(engine.send(traffic));
  front::FromFront answer = engine.read();
  REQUIRE(answer.has_traffic_set());
  CHECK(answer.traffic_set().error().empty());
  traffic.mutable_traffic()->set_measured("r3");
  REQUIRE(engine.send(traffic));
  CHECK_FALSE(engine.read().traffic_set().error().empty());
  status.mutable_status();
  REQUIRE(engine.send(status));
  answer = engine.read();
  REQUIRE(answer.status().versions_size() == 2);
  CHECK(answer.status().versions(0).percent() == 0);
  CHECK(answer.status().versions(1).percent() == 100);
}

TEST_CASE("a peer that sends what it may not is disconnected, and the others are served") {
  SocketFront front;
  SocketPeer good(front.path);
  int port = join_at(good);
  front::ToFront join, done, leave, control, traffic, status;
  join.mutable_join()->set_version("r1");
  join.mutable_join()->set_model("adder");
  done.mutable_done()->set_id(1);
  leave.mutable_leave();
  control.mutable_control();
  traffic.mutable_traffic();
  status.mutable_status();
  for (int i = 0; i < 100; i++) traffic.mutable_traffic()->add_weights();
  front::ToFront damaged;
  damaged.mutable_done()->add_outputs()->set_data("1234");
  const std::string wrong_first[] = {announced(4, "\xff\xff\xff\xff"),
                                     announced(UINT32_MAX),
                                     announced(0),
                                     frame_of(done),
                                     frame_of(leave),
                                     frame_of(traffic),
                                     frame_of(status)};
  const std::string wrong_of_replica[] = {frame_of(done), frame_of(damaged), frame_of(control),
                                          frame_of(status), announced(300 << 20)};
  const std::string wrong_of_engine[] = {frame_of(done),    frame_of(join),
                                         frame_of(leave),   frame_of(control),
                                         frame_of(traffic), announced(1, "\x07")};
  size_t lines = 0;
  auto check_ended = [&](SocketPeer& peer, const std::string& name) {
    CHECK(peer.is_at_end());
    std::vector<std::string> logged;
    while ((logged = front.logged()).size() == lines) std::this_thread::yield();
    CHECK_THAT(logged.back(), Contains("the connection to " + name + " has ended: it "));
    lines = logged.size();
  };
  for (const std::string& bytes : wrong_first) {
    SocketPeer peer(front.path);
    peer.send_bytes(bytes);
    check_ended(peer, "a peer");
  }
  for (const std::string& bytes : wrong_of_replica) {
    SocketPeer peer(front.path);
    join_at(peer);
    peer.send_bytes(bytes);
    if (&bytes == &wrong_of_replica[1]) {
      CHECK(peer.is_at_end());
      while (front.logged().size() == lines) std::this_thread::yield();
      CHECK_THAT(front.logged().back(), Contains("malformed message: the type of a tensor"));
      lines++;
    } else {
      check_ended(peer, "replica `adder[0]` (process 4711)");
    }
  }
  for (const std::string& bytes : wrong_of_engine) {
    SocketPeer peer(front.path);
    peer.send(control);
    peer.send_bytes(bytes);
    check_ended(peer, "an engine");
  }
  front.wait_peers(1);
  Client client(port);
  client.send(post_text(kInfer, infer_body("x", 1)));
  answer_batch(good);
  CHECK(first_number(client.read()) == 2);
}

TEST_CASE("a replica that joins again brings the keys of its new engine") {
  SocketFront front;
  SocketPeer replica(front.path);
  front::ToFront join;
  join.mutable_join()->set_version("r1");
  join.mutable_join()->set_model("adder");
  join.mutable_join()->add_keys("one");
  REQUIRE(replica.send(join));
  int port = port_of(replica.read().admitted().url());
  auto status = [&](const std::string& key) {
    return send_raw(port,
                    "GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    "Authorization: Bearer " +
                        key + "\r\n\r\n")
        .status;
  };
  CHECK(status("one") == 200);
  join.mutable_join()->set_keys(0, "two");
  REQUIRE(replica.send(join));
  while (status("two") != 200) std::this_thread::yield();
  CHECK(status("one") == 401);
}

TEST_CASE("a frame may arrive byte by byte, and two at once") {
  SocketFront front;
  SocketPeer peer(front.path);
  front::ToFront control, status;
  control.mutable_control();
  status.mutable_status();
  for (char byte : frame_of(control)) REQUIRE(peer.send_bytes({&byte, 1}));
  REQUIRE(peer.send_bytes(frame_of(status) + frame_of(status)));
  CHECK(peer.read().has_status());
  CHECK(peer.read().has_status());
}

TEST_CASE("a replica that ends with half of an answer gives its requests back") {
  SocketFront front;
  SocketPeer one(front.path);
  Client client(join_at(one));
  client.send(post_text(kInfer, infer_body("x", 1)));
  CHECK(parse_batch(one.read_frame())->has_value());
  one.send_bytes(announced(100, "half"));
  one.close();
  SocketPeer two(front.path);
  join_at(two);
  answer_batch(two);
  CHECK(first_number(client.read()) == 2);
}

namespace {

constexpr size_t kLargeFloats = 1 << 20;  // of a request, which have 4 MiB

std::string binary_request(const std::vector<float>& numbers) {
  const std::string json = R"({"inputs":[{"name":"x","shape":[1,)" +
                           std::to_string(numbers.size()) +
                           R"(],"datatype":"FP32","parameters":{"binary_data_size":)" +
                           std::to_string(numbers.size() * sizeof(float)) +
                           R"(}}],"parameters":{"binary_data_output":true}})";
  std::string body = json;
  body.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  return post_text(kInfer, body,
                   "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
}

std::vector<float> counting(size_t count, float first) {
  std::vector<float> numbers(count);
  for (size_t i = 0; i < count; i++) numbers[i] = first + static_cast<float>(i % 500);
  return numbers;
}

/// Checks that an answer has each number plus one.
void check_added(const Reply& reply, std::vector<float> numbers) {
  REQUIRE(reply.status == 200);
  for (float& number : numbers) number++;
  size_t size = numbers.size() * sizeof(float);
  REQUIRE(reply.body.size() > size);
  CHECK(std::memcmp(reply.body.data() + reply.body.size() - size, numbers.data(), size) == 0);
}

/// A replica that shares memory with its front, as the executor's does.
class SharingPeer {
 public:
  explicit SharingPeer(const std::string& path) : socket(path) {
    REQUIRE(socket.join("r1", "adder", true));
    front::FromFront answer = socket.read();
    REQUIRE(answer.has_admitted());
    port = port_of(answer.admitted().url());
  }
  /// The next batch, after what the front says of memory. `memory` is the one that the batch is in;
  /// 0: its frame.
  BatchMessage next(uint64_t& used) {
    while (true) {
      Bytes frame = socket.read_frame();
      REQUIRE_FALSE(frame == nullptr);
      used = 0;
      auto batch = parse_batch(frame, [&](uint64_t id) {
        used = id;
        return memory.inputs(id);
      });
      REQUIRE(batch.ok());
      if (batch->has_value()) return std::move(**batch);
      front::FromFront message;
      REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
      for (uint64_t id : message.memory_released().ids()) CHECK(memory.return_outputs(id));
      if (message.has_memory()) map(message.memory());
    }
  }
  /// Answers it, and returns the memory that the outputs are in.
  uint64_t answer(BatchMessage batch) {
    Result<Tensors> outputs = add_one(batch.inputs);
    batch.inputs.clear();
    uint64_t bytes = memory_bytes({&*outputs});
    auto place = bytes >= kSharedBytesMin ? memory.take_outputs(bytes) : std::nullopt;
    front::ToFront released;
    for (uint64_t id : memory.take_released()) released.mutable_memory_released()->add_ids(id);
    if (released.has_memory_released()) REQUIRE(socket.send(released));
    REQUIRE(socket.send(outcome_frame(batch.id, outputs, place)));
    return place ? place->id : 0;
  }

  SocketPeer socket;
  FrontMemory memory;
  int port = 0;
  bool maps = true;

 private:
  void map(const front::Memory& from) {
    int descriptor = socket.take_descriptor();
    REQUIRE(descriptor >= 0);
    REQUIRE(memory.add(from.id(), from.size(), from.is_for_outputs(), from.replaces(), descriptor)
                .ok());
    if (!maps) return;
    front::ToFront message;
    message.mutable_memory_mapped()->set_id(from.id());
    REQUIRE(socket.send(message));
  }
};

}  // namespace

TEST_CASE(
    "large tensors go through memory that the replica shares, small ones through its socket") {
  SocketFront front;
  SharingPeer replica(front.path);
  Client client(replica.port);
  uint64_t in = 0, out = 0;
  for (int round = 0; round < 20; round++) {
    // The sizes change, and the largest grows.
    size_t count = kLargeFloats / 8 * static_cast<size_t>(1 + round % 4 + round / 10 * 5);
    std::vector<float> numbers = counting(count, static_cast<float>(round));
    client.send(binary_request(numbers));
    BatchMessage batch = replica.next(in);
    CHECK(batch.inputs.at("x").data->size() == count * sizeof(float));
    out = replica.answer(std::move(batch));
    check_added(client.read(), numbers);
  }
  CHECK(in > 0);
  CHECK(out > 0);
  client.send(binary_request({1}));
  BatchMessage small = replica.next(in);
  CHECK(in == 0);
  CHECK(replica.answer(std::move(small)) == 0);
  check_added(client.read(), {1});
  CHECK(front.logged().empty());
}

TEST_CASE("requests are joined in shared memory, and each gets its rows") {
  SocketFront front;
  SharingPeer replica(front.path);
  std::vector<std::vector<float>> numbers;
  std::list<Client> clients;
  for (int i = 0; i < 3; i++) {
    clients.emplace_back(replica.port);
    numbers.push_back(counting(kLargeFloats / 4, static_cast<float>(1000 * i)));
  }
  uint64_t in = 0;
  bool is_shared = false;
  for (int round = 0; round < 6; round++) {
    auto client = clients.begin();
    client->send(binary_request(numbers[0]));
    BatchMessage batch = replica.next(in);
    for (size_t i = 1; i < 3; i++) (++client)->send(binary_request(numbers[i]));
    auto queued = [&] {
      return request(replica.port, "GET", "/metrics")
                 .body.find("queue_length{model=\"adder\",version=\"r1\"} 2") != std::string::npos;
    };
    while (!queued()) std::this_thread::yield();
    replica.answer(std::move(batch));
    batch = replica.next(in);
    CHECK(rows_of(batch.inputs) == 2);
    is_shared = is_shared || in > 0;
    replica.answer(std::move(batch));
    client = clients.begin();
    for (size_t i = 0; i < 3; i++) check_added(client++->read(), numbers[i]);
  }
  CHECK(is_shared);
}

TEST_CASE("a front shares nothing with a replica that does not answer, as one behind a relay") {
  SocketFront front;
  SharingPeer replica(front.path);
  replica.maps = false;
  Client client(replica.port);
  std::vector<float> numbers = counting(kLargeFloats, 0);
  for (int round = 0; round < 4; round++) {
    uint64_t in = 0;
    client.send(binary_request(numbers));
    BatchMessage batch = replica.next(in);
    CHECK(in == 0);
    REQUIRE(replica.socket.send(outcome_frame(batch.id, add_one(batch.inputs))));
    check_added(client.read(), numbers);
  }
}

TEST_CASE("a client that reads slowly keeps the outputs, and the others are answered") {
  SocketFront front;
  SharingPeer replica(front.path);
  std::vector<float> numbers = counting(4 * kLargeFloats, 0);
  std::list<Client> slow;
  uint64_t in = 0;
  for (int i = 0; i < 8; i++) {
    slow.emplace_back(replica.port).send(binary_request(numbers));
    replica.answer(replica.next(in));
  }
  Client client(replica.port);
  client.send(binary_request({5}));
  replica.answer(replica.next(in));
  check_added(client.read(), {5});
  for (Client& each : slow) check_added(each.read(), numbers);
}

TEST_CASE("a replica that says what is not so of shared memory is disconnected") {
  SocketFront front;
  std::vector<float> numbers = counting(kLargeFloats, 0);
  size_t lines = 0;
  enum Fault {
    unknown_memory,
    inputs_memory,
    beyond,
    unknown_released,
    released_twice,
    mapped_twice
  };
  for (int fault = unknown_memory; fault <= mapped_twice; fault++) {
    SharingPeer replica(front.path);
    std::list<Client> clients;
    uint64_t in = 0, out = 0;
    for (int i = 0; i < 8 && (in == 0 || out == 0); i++) {
      Client& client = clients.emplace_back(replica.port);
      client.send(binary_request(numbers));
      out = replica.answer(replica.next(in));
      check_added(client.read(), numbers);
    }
    REQUIRE(in > 0);
    REQUIRE(out > 0);
    Client client(replica.port);
    client.send(binary_request(numbers));
    BatchMessage batch = replica.next(in);
    front::ToFront message;
    switch (fault) {
      case unknown_memory:
      case inputs_memory:
        message.mutable_done()->set_id(batch.id);
        message.mutable_done()->set_memory(fault == inputs_memory ? in : 99);
        break;
      case beyond: {
        Result<Tensors> outputs = add_one(batch.inputs);
        std::string larger(64u << 20, '\0');  // than what the front has
        auto taken = replica.memory.take_outputs(1000);
        REQUIRE(taken);
        Tensors large;
        Tensor& tensor = large["x"];
        tensor.dtype = DType::u8;
        tensor.shape = {1, static_cast<int64_t>(larger.size())};
        tensor.data = std::make_shared<const std::string>(larger);
        REQUIRE(replica.socket.send(
            outcome_frame(batch.id, large, TensorMemory{taken->id, larger.data(), larger.size()})));
        break;
      }
      case unknown_released:
        message.mutable_memory_released()->add_ids(99);
        break;
      case released_twice:
        message.mutable_memory_released()->add_ids(in);
        message.mutable_memory_released()->add_ids(in);
        break;
      default:
        message.mutable_memory_mapped()->set_id(in);
    }
    if (fault != beyond) REQUIRE(replica.socket.send(message));
    CHECK(replica.socket.is_at_end());
    while (front.logged().size() == lines) std::this_thread::yield();
    CHECK_THAT(front.logged().back(), Contains("has ended: "));
    lines = front.logged().size();
    // The request runs again on the next replica.
    SharingPeer next(front.path);
    next.answer(next.next(in));
    check_added(client.read(), numbers);
    next.socket.close();
    front.wait_peers(0);
  }
}

TEST_CASE("a replica that dies while the front sends its outputs harms no answer") {
  SocketFront front;
  std::optional<SharingPeer> replica(std::in_place, front.path);
  std::vector<float> numbers = counting(4 * kLargeFloats, 0);
  Client client(replica->port);
  uint64_t in = 0, out = 0;
  for (int i = 0; i < 8 && out == 0; i++) {
    client.send(binary_request(numbers));
    out = replica->answer(replica->next(in));
    if (out == 0) check_added(client.read(), numbers);
  }
  REQUIRE(out > 0);
  replica.reset();
  front.wait_peers(0);
  check_added(client.read(), numbers);
}
