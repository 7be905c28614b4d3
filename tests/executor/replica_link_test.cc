// A replica's connection to its front, which is a fake.
#include "engine/executor/replica_link.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/base/descriptor_message.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/protocol/frames.hpp"

using namespace flow;

namespace {

Tensor floats_of(const std::vector<float>& numbers) {
  Tensor tensor;
  tensor.shape = {static_cast<int64_t>(numbers.size())};
  tensor.data = std::make_shared<const std::string>(reinterpret_cast<const char*>(numbers.data()),
                                                    numbers.size() * sizeof(float));
  return tensor;
}

std::vector<float> numbers_of(std::string_view data) {
  std::vector<float> numbers(data.size() / sizeof(float));
  std::memcpy(numbers.data(), data.data(), data.size());
  return numbers;
}

/// The front's end of a connection.
class Peer {
 public:
  explicit Peer(int descriptor) : descriptor_(descriptor) {}
  ~Peer() { close(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

  front::ToFront receive() {
    uint32_t size = 0;
    REQUIRE(read_fully(descriptor_, reinterpret_cast<char*>(&size), sizeof size));
    std::string bytes(size, '\0');
    REQUIRE(read_fully(descriptor_, bytes.data(), size));
    front::ToFront message;
    REQUIRE(message.ParseFromString(bytes));
    return message;
  }
  void send(const front::FromFront& message) {
    std::string out;
    append_frame(out, message);
    send_bytes(out);
  }
  void send_bytes(const std::string& bytes) { REQUIRE(write_fully(descriptor_, bytes)); }
  /// Sends memory, with the descriptor unless that is negative.
  void send_memory(uint64_t id, uint64_t size, bool is_for_outputs, int descriptor) {
    front::FromFront message;
    message.mutable_memory()->set_id(id);
    message.mutable_memory()->set_size(size);
    message.mutable_memory()->set_is_for_outputs(is_for_outputs);
    std::string out;
    append_frame(out, message);
    iovec part{out.data(), out.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    DescriptorMessage attached;
    if (descriptor >= 0) attached.attach(header, descriptor);
    REQUIRE(::sendmsg(descriptor_, &header, 0) == static_cast<ssize_t>(out.size()));
  }
  void send(const FramePieces& pieces) {
    for (const Bytes& piece : pieces) send_bytes(std::string(*piece));
  }
  /// The next frame, whose memory `lookup` knows.
  OutcomeMessage receive_outcome(const MemoryLookup& lookup) {
    uint32_t size = 0;
    REQUIRE(read_fully(descriptor_, reinterpret_cast<char*>(&size), sizeof size));
    auto frame = std::make_shared<std::string>(size, '\0');
    REQUIRE(read_fully(descriptor_, frame->data(), size));
    auto outcome = parse_outcome(frame, lookup);
    REQUIRE(outcome.ok());
    REQUIRE(outcome->has_value());
    return std::move(**outcome);
  }
  /// Answers a Join.
  front::Join accept_join(const std::string& url = "http://127.0.0.1:1") {
    front::ToFront message = receive();
    REQUIRE(message.has_join());
    front::FromFront answer;
    answer.mutable_admitted()->set_url(url);
    send(answer);
    return message.join();
  }
  void send_batch(uint64_t id, const std::vector<float>& x) {
    front::FromFront message;
    message.mutable_batch()->set_id(id);
    front::Tensor& tensor = *message.mutable_batch()->add_inputs();
    tensor.set_name("x");
    tensor.set_dtype("f32");
    tensor.add_shape(static_cast<int64_t>(x.size()));
    tensor.set_data(std::string(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)));
    send(message);
  }
  front::BatchDone receive_done() {
    front::ToFront message = receive();
    REQUIRE(message.has_done());
    return message.done();
  }
  bool is_at_end() {
    char byte;
    return !read_fully(descriptor_, &byte, 1);
  }
  /// Returns when the replica has joined.
  void await_admitted() {
    accept_join();
    send_batch(1, {1});
    receive_done();
  }
  void release() {
    front::FromFront message;
    message.mutable_released();
    send(message);
  }

 private:
  int descriptor_;
};

/// A replica that serves on a thread, and the socket of its front.
class Replica {
 public:
  explicit Replica(int64_t connect_ms = 60'000, bool listens = true) : link(options(connect_ms)) {
    if (listens) listen();
  }
  ~Replica() {
    if (thread_.joinable()) {
      link.leave(0);
      thread_.join();
    }
    if (listener_ >= 0) ::close(listener_);
  }

  void listen() {
    auto listening = listen_unix(**folder_ + "/front.sock");
    REQUIRE(listening.ok());
    listener_ = *listening;
  }
  /// As after the death of a front.
  void stop_listening() { ::close(std::exchange(listener_, -1)); }
  int accept() const { return ::accept(listener_, nullptr, nullptr); }
  void start() {
    thread_ = std::thread([this] {
      Status result = link.join();
      if (result.ok())
        result = link.serve(predict, [this] {
          if (renewed.keys_size() > 0) link.renew(renewed);
        });
      ended_.set_value(result);
    });
  }
  Status wait_ended() { return ended_.get_future().get(); }
  std::vector<std::string> urls() {
    std::lock_guard lock(mutex_);
    return urls_;
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  const std::string& folder() const { return **folder_; }

 private:
  ReplicaOptions options(int64_t connect_ms) {
    auto made = make_temporary_folder();
    REQUIRE(made.ok());
    folder_ = *made;
    ReplicaOptions options;
    options.folder = *folder_.value();
    options.connect_ms = connect_ms;
    options.join.set_version("run-1");
    options.join.set_replica("digits[0]");
    options.on_url = [this](const std::string& url) {
      std::lock_guard lock(mutex_);
      urls_.push_back(url);
    };
    options.log = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
    options.collect = [this] { collections++; };
    return options;
  }

  std::optional<std::shared_ptr<const std::string>> folder_;
  std::mutex mutex_;
  std::vector<std::string> urls_, lines_;
  int listener_ = -1;
  std::promise<Status> ended_;
  std::thread thread_;

 public:
  ReplicaLink link;
  std::atomic<int> collections{0};
  front::Join renewed;  // what it joins with after a call of wake()
  ReplicaLink::Predict predict = [](const BatchMessage& batch,
                                    ResponseParameters& parameters) -> Result<Tensors> {
    std::vector<float> numbers = numbers_of(*batch.inputs.at("x").data);
    if (numbers[0] == 13) return Error{ErrorKind::task, "thirteen is not served"};
    if (numbers[0] == 14) return user_error("fourteen is wrong");
    for (float& number : numbers) number *= 2;
    if (numbers[0] == 30) parameters = {{{.name = "model", .value = Value("v3")}}};
    return Tensors{{"y", floats_of(numbers)}};
  };
};

}  // namespace

TEST_CASE("a replica joins its front and answers batches of any size") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front::Join join = front.accept_join("http://127.0.0.1:8080");
  CHECK(join.version() == "run-1");
  CHECK(join.replica() == "digits[0]");
  uint64_t id = 7;
  for (size_t size : {1, 100, 16'000, 16'384, 20'000, 3'000'000}) {
    std::vector<float> x(size);
    std::iota(x.begin(), x.end(), 20.f);
    front.send_batch(++id, x);
    front::BatchDone done = front.receive_done();
    CHECK(done.id() == id);
    CHECK(done.error() == 0);
    REQUIRE(done.outputs_size() == 1);
    CHECK(done.outputs(0).name() == "y");
    for (float& number : x) number *= 2;
    CHECK(numbers_of(done.outputs(0).data()) == x);
  }
  CHECK(replica.urls() == std::vector<std::string>{"http://127.0.0.1:8080"});
}

TEST_CASE("an error of predict is the service's, or the request's") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.accept_join();
  front.send_batch(1, {13});
  front::BatchDone done = front.receive_done();
  CHECK(done.error() == 1);
  CHECK(done.message() == "thirteen is not served");
  front.send_batch(2, {14});
  done = front.receive_done();
  CHECK(done.error() == 2);
  CHECK(done.message() == "fourteen is wrong");
}

TEST_CASE("a replica that the front rejects gets its message") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.receive();
  front::FromFront answer;
  answer.mutable_rejected()->set_message("the port is in use");
  front.send(answer);
  Status ended = replica.wait_ended();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().kind == ErrorKind::user);
  CHECK(ended.error().message == "the port is in use");
  CHECK(replica.urls().empty());
}

TEST_CASE("a front that does not come is an error, and one that comes late is not") {
  Replica without(100, false);
  without.start();
  Status ended = without.wait_ended();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().kind == ErrorKind::environment);
  CHECK(ended.error().message.find("front.sock") != std::string::npos);

  Replica late(60'000, false);
  late.start();
  late.listen();
  Peer front(late.accept());
  front.accept_join();
}

TEST_CASE("a replica that is asked to leave before it has joined does not join") {
  Replica replica(60'000, false);
  replica.start();
  replica.link.leave(1000);
  Status ended = replica.wait_ended();
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().kind == ErrorKind::interrupted);
}

TEST_CASE("after the death of a front the replica joins the next one") {
  Replica replica;
  replica.start();
  {
    Peer front(replica.accept());
    front.accept_join("http://127.0.0.1:1");
    front.send_batch(1, {1});
    replica.stop_listening();
  }
  replica.listen();
  {
    Peer front(replica.accept());
    CHECK(front.accept_join("http://127.0.0.1:1").replica() == "digits[0]");
    front.send_batch(1, {4});
    CHECK(numbers_of(front.receive_done().outputs(0).data()) == std::vector<float>{8});
    front.send_bytes(std::string(4, '\xff'));  // a frame of 4 GiB
  }
  Peer front(replica.accept());
  front.accept_join("http://127.0.0.1:2");
  front.send_batch(3, {5});
  front.receive_done();
  CHECK(replica.urls() == std::vector<std::string>{"http://127.0.0.1:1", "http://127.0.0.1:2"});
  front.close();

  Peer last(replica.accept());
  last.receive();
  front::FromFront answer;
  answer.mutable_rejected()->set_message("another address");
  last.send(answer);
  CHECK(replica.wait_ended().error().message == "another address");
}

TEST_CASE("a replica whose front ends joins the next one, unless it leaves") {
  Replica replica;
  replica.start();
  {
    Peer front(replica.accept());
    front.accept_join();
    front.release();  // it was not asked to leave
  }
  Peer front(replica.accept());
  front.await_admitted();
  replica.link.leave(5000);
  CHECK(front.receive().leave().grace_ms() == 5000);
  front.send_batch(9, {3});
  CHECK(front.receive_done().id() == 9);
  front.release();
  CHECK(replica.wait_ended().ok());
}

TEST_CASE("a replica waits for its release until its grace is over, or the front is gone") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.await_admitted();
  replica.link.leave(20);
  CHECK(replica.wait_ended().ok());

  Replica second;
  second.start();
  Peer other(second.accept());
  other.await_admitted();
  second.link.leave(600'000);
  other.receive();
  other.close();
  CHECK(second.wait_ended().ok());
}

TEST_CASE("a replica says that it leaves while predict runs") {
  std::promise<void> begun, over;
  Replica replica;
  replica.predict = [&](const BatchMessage&, ResponseParameters&) -> Result<Tensors> {
    begun.set_value();
    over.get_future().wait();
    return Tensors{{"y", floats_of({1})}};
  };
  replica.start();
  Peer front(replica.accept());
  front.accept_join();
  front.send_batch(1, {1});
  begun.get_future().wait();
  replica.link.leave(10'000, true);
  front::ToFront left = front.receive();
  REQUIRE(left.has_leave());
  CHECK(left.leave().grace_ms() == 10'000);
  CHECK(left.leave().is_replaced());
  over.set_value();
  CHECK(front.receive_done().id() == 1);
  front.release();
  CHECK(replica.wait_ended().ok());
}

TEST_CASE("a replica logs what the front says, and gives it new keys") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.await_admitted();
  front::FromFront message;
  message.mutable_log()->add_lines("request failed: x");
  front.send(message);
  replica.renewed.add_keys("second");
  replica.link.wake();
  CHECK(front.receive().join().keys(0) == "second");
  front.send_batch(1, {1});
  front.receive_done();
  CHECK(replica.lines() == std::vector<std::string>{"request failed: x"});
}

namespace {

constexpr size_t kSharedSize = 16u << 20;

/// Memory for inputs and outputs, as a front shares it.
struct FrontSide {
  std::unique_ptr<SharedMemory> in = create(), out = create();

  static std::unique_ptr<SharedMemory> create() {
    auto created = SharedMemory::create(kSharedSize);
    REQUIRE(created.ok());
    return std::move(*created);
  }
  MemoryLookup lookup(uint64_t expected) const {
    return [this, expected](uint64_t id) -> Bytes {
      CHECK(id == expected);
      return {std::string_view(out->data(), out->size()), std::make_shared<int>()};
    };
  }
};

void send_shared(Peer& front, uint64_t batch, uint64_t id, const SharedMemory& memory,
                 const std::vector<float>& numbers) {
  Tensors inputs = {{"x", floats_of(numbers)}};
  front.send(batch_frame(batch, {&inputs}, {}, TensorMemory{id, memory.data(), memory.size()}));
}

}  // namespace

TEST_CASE("a replica reads inputs from shared memory, and writes its outputs to the other one") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.accept_join();
  FrontSide memory;
  front.send_memory(1, kSharedSize, false, memory.in->descriptor());
  CHECK(front.receive().memory_mapped().id() == 1);
  front.send_memory(2, kSharedSize, true, memory.out->descriptor());
  CHECK(front.receive().memory_mapped().id() == 2);
  uint64_t batch = 1;
  for (size_t size : {100'000, 2'000'000}) {
    std::vector<float> x(size);
    std::iota(x.begin(), x.end(), 20.f);
    send_shared(front, ++batch, 1, *memory.in, x);
    front::ToFront released = front.receive();
    REQUIRE(released.memory_released().ids_size() == 1);
    CHECK(released.memory_released().ids(0) == 1);
    OutcomeMessage outcome = front.receive_outcome(memory.lookup(2));
    CHECK(outcome.id == batch);
    for (float& number : x) number *= 2;
    CHECK(numbers_of(*outcome.outputs->at("y").data) == x);
    front::FromFront returned;
    returned.mutable_memory_released()->add_ids(2);
    front.send(returned);
  }
  // Small outputs are in the frame, and so are large ones while the front has the memory.
  front.send_batch(9, {1});
  CHECK(front.receive_done().outputs(0).data().size() == 4);
  CHECK(replica.collections == 0);
}

TEST_CASE("inputs that predict keeps stay what they were when the front uses the memory again") {
  Replica replica;
  std::vector<Tensors> kept;
  replica.predict = [&](const BatchMessage& batch, ResponseParameters&) -> Result<Tensors> {
    kept.push_back(batch.inputs);
    return Tensors{{"y", floats_of({1})}};
  };
  replica.start();
  Peer front(replica.accept());
  front.accept_join();
  std::vector<FrontSide> memories(2);
  for (uint64_t id : {1, 2}) {
    front.send_memory(id, kSharedSize, false, memories[id - 1].in->descriptor());
    front.receive();
  }
  const size_t count = FrontMemory::kLentBytesMin / sizeof(float);
  for (uint64_t id : {1, 2}) {
    send_shared(front, id, id, *memories[id - 1].in,
                std::vector<float>(count, static_cast<float>(id)));
    CHECK(front.receive_done().id() == id);
  }
  CHECK(front.receive().memory_released().ids_size() == 2);
  CHECK(replica.collections == 1);
  send_shared(front, 3, 1, *memories[0].in, std::vector<float>(count, 3));
  CHECK(front.receive_done().id() == 3);
  replica.link.leave(0);
  CHECK(replica.wait_ended().ok());
  REQUIRE(kept.size() == 3);
  for (size_t i = 0; i < 3; i++)
    CHECK(numbers_of(*kept[i].at("x").data) ==
          std::vector<float>(count, static_cast<float>(i + 1)));
}

TEST_CASE("a replica serves on if memory comes without a descriptor, or with another one") {
  Replica replica;
  replica.start();
  Peer front(replica.accept());
  front.accept_join();
  FrontSide memory;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  front.send_memory(1, kSharedSize, false, -1);
  front.send_memory(2, kSharedSize, false, ends[0]);
  front.send_memory(3, kSharedSize - 1, true, memory.out->descriptor());
  front.send_memory(4, kSharedSize, true, memory.out->descriptor());
  CHECK(front.receive().memory_mapped().id() == 4);
  for (int end : ends) ::close(end);
  front.send_batch(1, {4});
  CHECK(numbers_of(front.receive_done().outputs(0).data()) == std::vector<float>{8});
}

TEST_CASE("a front that refers to memory that the replica does not have is left") {
  Replica replica;
  replica.start();
  FrontSide memory;
  {
    Peer front(replica.accept());
    front.accept_join();
    send_shared(front, 1, 7, *memory.in, {1});
    CHECK(front.is_at_end());
  }
  Peer next(replica.accept());
  next.await_admitted();
}
