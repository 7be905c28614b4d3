// Failures of a gang and what each rank reports; calls that run while their caller continues.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "tests/transports/collective/gang.hpp"
#include "tests/transports/collective/tap.hpp"
#include "tests/transports/faulty.hpp"

using namespace flow;
using std::chrono::milliseconds;

namespace {

CollectiveCall sum(std::vector<float>& data) {
  return all_reduce(data.data(), data.data(), static_cast<int64_t>(data.size()), DType::f32,
                    ReduceOp::sum);
}

const std::vector<std::string> kNodes = {"aaa", "abc", "aab", "abb"};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

TEST_CASE("Mismatched calls are reported to all ranks, and no rank waits") {
  auto nodes = GENERATE_REF(from_range(kNodes));
  size_t count = GENERATE(3, 100'000);
  CAPTURE(nodes, count);
  Gang gang({nodes});
  CollectiveCall other = barrier();
  std::vector<float> others(3 * count);
  std::string message = "barrier";
  SECTION("a different collective") {}
  SECTION("a different operation") {
    other = all_reduce(others.data(), others.data(), static_cast<int64_t>(count), DType::f32,
                       ReduceOp::max);
    message = "all_reduce(max) of " + std::to_string(count) + " f32";
  }
  SECTION("a different count") {
    other = all_reduce(others.data(), others.data(), static_cast<int64_t>(count) + 1, DType::f32,
                       ReduceOp::sum);
    message = "all_reduce(sum) of " + std::to_string(count + 1) + " f32";
  }
  SECTION("a different type") {
    other = all_reduce(others.data(), others.data(), static_cast<int64_t>(count), DType::i32,
                       ReduceOp::sum);
    message = "all_reduce(sum) of " + std::to_string(count) + " i32";
  }
  SECTION("a different shape") {
    other = sum(others);
    other.count = static_cast<int64_t>(count);
    other.shape = 1;
    message = "all_reduce(sum) of " + std::to_string(count) + " f32";
  }
  SECTION("the same on GPUs, reported by one rank alone") {
    other = sum(others);
    other.count = static_cast<int64_t>(count);
    other.is_device = true;
    other.moves = false;
    message = "all_reduce(sum) of " + std::to_string(count) + " f32 on a GPU";
  }
  SECTION("a collective against a message") {
    other = all_gather(others.data(), others.data(), static_cast<int64_t>(count), DType::f32);
    other.from = others.data() + count;
    message = "all_gather of " + std::to_string(count) + " f32";
  }
  auto outcomes = gang.run([&](Communicator& comm) {
    std::vector<float> data(count);
    Status first = comm.run(barrier());
    return text_of(comm.run(comm.rank() == 2 ? other : sum(data))) + text_of(first);
  });
  for (const std::string& one : outcomes)
    CHECK_THAT(one,
               Catch::StartsWith("collective #2: rank ") &&
                   Catch::Contains("rank 2 called " + message) &&
                   Catch::Contains("called all_reduce(sum) of " + std::to_string(count) + " f32"));
  gang.check([&](Communicator& comm) {
    Status again = comm.run(barrier());
    return again.ok() ? "a failed communicator went on" : "";
  });
}

TEST_CASE("A receive that does not match the message is reported on both ranks") {
  auto nodes = GENERATE(as<std::string>(), "aa", "ab");
  int64_t count = GENERATE(3, 100'000);
  Gang gang({nodes});
  auto outcomes = gang.run([&](Communicator& comm) {
    std::vector<float> data(static_cast<size_t>(count) + 1);
    if (comm.rank() == 1) return text_of(comm.run(recv(data.data(), count + 1, DType::f32, 0)));
    Status sent = comm.run(send(data.data(), count, DType::f32, 1));
    Status after = comm.run(barrier());
    return sent.ok() ? text_of(after) : text_of(sent);
  });
  for (const std::string& one : outcomes)
    CHECK(one == "message #1 from rank 0 to rank 1: rank 0 sends " + std::to_string(count) +
                     " f32, rank 1 receives " + std::to_string(count + 1) + " f32");
}

TEST_CASE("A mismatch is reported even if the data arrives before its description") {
  constexpr int64_t kCount = 100'000;  // large enough for puts
  int64_t more = GENERATE(-1, 1);      // what rank 1 receives in addition
  bool is_of_messages = GENERATE(true, false);
  CAPTURE(more, is_of_messages);
  int made = 0;
  Gang gang({"ab", [&]() -> std::unique_ptr<Transport> {
               Faults faults;
               faults.late = 1;
               faults.late_ms_max = 50;
               if (made++ > 0) return inproc();
               return std::make_unique<FaultyTransport>(inproc(), faults);
             }});
  auto outcomes = gang.run([&](Communicator& comm) {
    std::vector<float> data(kCount + 1);
    bool is_first = comm.rank() == 0;
    int64_t count = is_first ? kCount : kCount + more;
    Status met = comm.run(barrier());
    Status moved = comm.run(!is_of_messages ? broadcast(data.data(), count, DType::f32, 0)
                            : is_first      ? send(data.data(), count, DType::f32, 1)
                                            : recv(data.data(), count, DType::f32, 0));
    Status after = comm.run(barrier());
    return text_of(met) + text_of(moved.ok() ? after : moved);
  });
  std::string theirs = std::to_string(kCount + more) + " f32", ours = std::to_string(kCount);
  for (const std::string& one : outcomes)
    CHECK_THAT(one, Catch::StartsWith(is_of_messages ? "message #1 from rank 0 to rank 1: "
                                                     : "collective #2: rank ") &&
                        Catch::Contains(ours + " f32") && Catch::Contains(theirs));
}

TEST_CASE("A call with invalid arguments is rejected and has no effect on the gang") {
  Gang gang({"aa"});
  std::vector<float> data(8);
  auto problem = [&](const CollectiveCall& call) { return text_of(gang[0].run(call)); };
  CHECK(problem(all_reduce(data.data(), data.data(), 8, DType::i32, ReduceOp::mean)) ==
        "all_reduce: the mean of i32 is not supported for integers: take the sum, or convert to "
        "f32 first");
  CHECK(problem(reduce_scatter(data.data(), data.data(), 1, DType::boolean, ReduceOp::sum)) ==
        "reduce_scatter: bools cannot be reduced with `sum`: `max` is whether any is true, `min` "
        "whether all are");
  CHECK(problem(broadcast(data.data(), 8, DType::f32, 2)) ==
        "broadcast: 2 is not a rank of this gang: its ranks are 0 to 1");
  CHECK(problem(broadcast(data.data(), 8, DType::f32, -1)) ==
        "broadcast: -1 is not a rank of this gang: its ranks are 0 to 1");
  CHECK(problem(send(data.data(), 8, DType::f32, 0)) == "send: rank 0 is this one; copy instead");
  CHECK(problem(all_reduce(data.data(), data.data(), -1, DType::f32, ReduceOp::sum)) ==
        "all_reduce: -1 elements");
  CHECK(problem(all_gather(data.data(), data.data(), INT64_MAX / 8, DType::f32)) ==
        "all_gather: 1152921504606846975 elements");
  CollectiveCall on_gpu = sum(data);
  on_gpu.is_device = true;
  CHECK_THAT(problem(on_gpu), Catch::Contains("the tensor is on a GPU: move it first"));
  CHECK(text_of(gang[0].start(on_gpu)->wait()) == problem(on_gpu));
  gang.check([&](Communicator& comm) { return text_of(comm.run(barrier())); });
}

TEST_CASE("abort() ends a wait on every rank, from any thread, with its reason") {
  auto nodes = GENERATE_REF(from_range(kNodes));
  CAPTURE(nodes);
  Gang gang({nodes});
  std::atomic<int> passed{0};  // ranks that have returned from the first call
  auto outcomes = gang.run([&](Communicator& comm) {
    std::vector<float> data(100'000);
    Status first = comm.run(sum(data));
    passed++;
    if (comm.rank() == 1) {
      while (passed < comm.ranks()) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(30));  // so that the others usually wait by then
      comm.abort("it was cancelled");
    }
    return text_of(comm.run(sum(data))) + text_of(first);
  });
  for (const std::string& one : outcomes) CHECK(one == "rank 1 ended the gang: it was cancelled");
}

TEST_CASE("A late rank is named on all ranks, with its last call") {
  auto nodes = GENERATE_REF(from_range(kNodes));
  CAPTURE(nodes);
  GangSpec spec{nodes};
  spec.deadline_ms = 300;
  Gang gang(spec);
  std::atomic<int> told_count{0};
  auto outcomes = gang.run([&](Communicator& comm) {
    Status first = comm.run(barrier());
    std::vector<float> data(10);
    while (comm.rank() == 2 && told_count < 2) std::this_thread::sleep_for(milliseconds(5));
    std::string message = text_of(comm.run(sum(data)));
    // The data that it needs may have arrived from the others before the news of their end.
    if (comm.rank() == 2 && message.empty()) message = text_of(comm.run(sum(data)));
    told_count++;
    return message + text_of(first);
  });
  // On a busy machine the deadline of one rank may end before the other has entered the call.
  for (const std::string& one : outcomes)
    CHECK_THAT(one, Catch::Matches("rank 2 hangs: it has not reached all_reduce #2, in which "
                                   "(rank [01] waits|ranks 0 and 1 wait), for 0\\.3 s; it was last "
                                   "in barrier #1"));
}

TEST_CASE("A deadlock is reported with the call in which each rank waits") {
  auto nodes = GENERATE(as<std::string>(), "aaa", "aab", "abc");
  bool is_ring = GENERATE(true, false);
  CAPTURE(nodes, is_ring);
  GangSpec spec{nodes};
  spec.deadline_ms = 800;
  Gang gang(spec);
  std::vector<char> large(size_t{4} << 20);
  auto count = static_cast<int64_t>(large.size());
  auto outcomes = gang.run([&](Communicator& comm) {
    Status first = comm.run(barrier());
    int next = (comm.rank() + 1) % 3;
    bool is_receiver = !is_ring && comm.rank() == 1;
    Status last = is_ring       ? comm.run(send(large.data(), count, DType::u8, next))
                  : is_receiver ? comm.run(recv(large.data(), count, DType::u8, 0))
                                : comm.run(barrier());
    return text_of(last) + text_of(first);
  });
  std::string expected =
      is_ring ? "ranks 0, 1 and 2 wait for each other for 0.8 s: rank 0 in send to rank 1, rank 1 "
                "in send to rank 2, rank 2 in send to rank 0. Where all send first, make the sends "
                "async"
              : "ranks 0 and 1 wait for each other for 0.8 s: rank 0 in a collective with rank 1, "
                "rank 1 in recv from rank 0";
  for (const std::string& one : outcomes) CHECK(one == expected);
}

TEST_CASE("A message to or from a rank that has left fails at once and names that rank") {
  auto nodes = GENERATE(as<std::string>(), "aaa", "aab", "abc");
  bool is_send = GENERATE(false, true);
  CAPTURE(nodes, is_send);
  Gang gang({nodes});
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  std::vector<char> large(size_t{4} << 20);
  auto outcomes = gang.run([&](Communicator& comm) {
    if (comm.rank() > 0) return text_of(comm.run(leave()));
    auto count = static_cast<int64_t>(large.size());
    return text_of(comm.run(is_send ? send(large.data(), count, DType::u8, 1)
                                    : recv(large.data(), count, DType::u8, 1)));
  });
  std::string call = is_send ? "send to" : "recv from";
  for (const std::string& one : outcomes)
    CHECK(one ==
          "rank 1 has ended, and rank 0 waits in " + call + " rank 1: each send needs its recv");
}

TEST_CASE("A message that a rank began to send before it left arrives") {
  auto nodes = GENERATE(as<std::string>(), "aa", "ab");
  size_t size = GENERATE(size_t{1}, size_t{1} << 16, size_t{5} << 20);
  CAPTURE(nodes, size);
  Gang gang({nodes});
  gang.check([&](Communicator& comm) -> std::string {
    auto count = static_cast<int64_t>(size);
    std::vector<std::vector<char>> data(3, std::vector<char>(size, comm.rank() == 1 ? 'x' : ' '));
    std::vector<std::shared_ptr<CollectiveWork>> sent;
    if (comm.rank() == 1) {
      for (auto& one : data) sent.push_back(comm.start(send(one.data(), count, DType::u8, 0)));
      return text_of(comm.run(leave()));
    }
    std::this_thread::sleep_for(milliseconds(60));  // so that it is usually in leave by then
    for (auto& one : data) {
      Status came = comm.run(recv(one.data(), count, DType::u8, 1));
      if (!came.ok()) return text_of(came);
      if (one != std::vector<char>(size, 'x')) return "what came is not what was sent";
    }
    return text_of(comm.run(leave()));
  });
}

// As when a rank's process closes its links before every rank has read the last frame.
TEST_CASE("A link that goes down after all ranks have left is not a failure") {
  auto network = std::make_shared<Network>();
  Gang gang({"ab", [network] {
               return std::make_unique<TapTransport>(make_inproc_transport(), network);
             }});
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  std::vector<std::string> held;  // what rank 0 sends to rank 1 from now on
  {
    std::lock_guard lock(network->mutex);
    network->on_frame = [&](bool is_first, std::string frame, const std::vector<std::string>&) {
      if (is_first) return std::vector{std::move(frame)};
      held.push_back(std::move(frame));
      return std::vector<std::string>();
    };
  }
  std::string message;
  std::thread second([&] { message = text_of(gang[1].run(leave())); });
  while (!gang[1].rank_progress()->is_inside) std::this_thread::sleep_for(milliseconds(1));
  CHECK(text_of(gang[0].run(leave())) == "");
  auto have_arrived = [&] {
    std::lock_guard lock(network->mutex);
    return network->arrived == network->sent;
  };
  while (!have_arrived()) std::this_thread::sleep_for(milliseconds(1));
  std::vector<std::string> frames;
  std::shared_ptr<LinkHandler> handler;
  {
    std::lock_guard lock(network->mutex);
    network->on_frame = nullptr;
    frames = std::move(held);
    handler = std::exchange(network->second, nullptr);
  }
  for (const std::string& frame : frames) handler->on_frame(frame);
  handler->on_down(environment_error("the peer closed the link"));
  second.join();
  CHECK(message == "");
}

TEST_CASE("A rank reports its progress to any rank that asks") {
  Gang gang({"ab"});
  auto place = [&](int rank) { return encode_rank_progress(*gang[rank].rank_progress()); };
  CHECK(gang[0].rank_progress()->number == 0);
  gang.check([](Communicator& comm) { return text_of(comm.run(barrier())); });
  CHECK(place(0) == encode_rank_progress({1, Collective::barrier, false, std::nullopt, 0}));
  auto waits_in = [&](const RankProgress& progress) {
    while (place(0) != encode_rank_progress(progress)) std::this_thread::sleep_for(milliseconds(1));
  };
  char byte = 'x';
  auto received = gang[0].start(recv(&byte, 1, DType::u8, 1));
  waits_in({1, Collective::barrier, false, Collective::recv, 1});
  CHECK(text_of(gang[1].run(send(&byte, 1, DType::u8, 0))).empty());
  CHECK(text_of(received->wait()).empty());
  auto met = gang[0].start(barrier());
  waits_in({2, Collective::barrier, true, std::nullopt, 0});
  CHECK(text_of(gang[1].run(barrier())).empty());
  CHECK(text_of(met->wait()).empty());
}

// The progress of a rank may be requested only after a failure has released it.
TEST_CASE("After a failure a rank still reports the call in which it waited") {
  auto nodes = GENERATE(as<std::string>(), "aa", "ab");
  CAPTURE(nodes);
  Gang gang({nodes});
  auto place = [&] { return encode_rank_progress(*gang[0].rank_progress()); };
  char byte = 'x';
  bool is_message = GENERATE(false, true);
  RankProgress waiting = is_message ? RankProgress{0, Collective{}, false, Collective::recv, 1}
                                    : RankProgress{1, Collective::leave, true, std::nullopt, 0};
  auto work = gang[0].start(is_message ? recv(&byte, 1, DType::u8, 1) : leave());
  while (place() != encode_rank_progress(waiting)) std::this_thread::sleep_for(milliseconds(1));
  gang[1].abort("it was cancelled");
  CHECK(text_of(work->wait()) == "rank 1 ended the gang: it was cancelled");
  CHECK(place() == encode_rank_progress(waiting));
}

TEST_CASE("A rank that enters a call after the failure is not reported as waiting in it") {
  Gang gang({"aa"});
  gang[1].abort("it was cancelled");
  while (gang[0].state().ok()) std::this_thread::sleep_for(milliseconds(1));
  CHECK(text_of(gang[0].run(barrier())) == "rank 1 ended the gang: it was cancelled");
  CHECK(gang[0].rank_progress()->number == 0);
}

TEST_CASE("Started calls run in order while their caller continues") {
  auto nodes = GENERATE(as<std::string>(), "a", "aaa", "abc", "aab");
  CAPTURE(nodes);
  Gang gang({nodes});
  gang.check([](Communicator& comm) -> std::string {
    std::vector<std::vector<float>> data(20, std::vector<float>(30'000, 1.0f));
    std::vector<std::shared_ptr<CollectiveWork>> works;
    for (auto& one : data) works.push_back(comm.start(sum(one)));
    float last = 1;
    Status status = comm.run(all_reduce(&last, &last, 1, DType::f32, ReduceOp::max));
    if (!status.ok()) return text_of(status);
    for (auto& work : works) {
      if (!work->is_done()) return "the last call was done before the others";
      if (Status one = work->wait(); !one.ok()) return text_of(one);
    }
    for (auto& one : data)
      for (float number : one)
        if (number != static_cast<float>(comm.ranks())) return "a sum of " + std::to_string(number);
    return "";
  });
}

TEST_CASE("Messages arrive in the order in which they were sent, also between collectives") {
  auto nodes = GENERATE(as<std::string>(), "aa", "ab");
  Gang gang({nodes});
  gang.check([](Communicator& comm) -> std::string {
    constexpr int kMessages = 300;
    std::vector<std::vector<int32_t>> data;
    std::vector<std::shared_ptr<CollectiveWork>> works;
    for (int i = 0; i < kMessages; i++) {
      auto size = static_cast<size_t>(1 + i * 37 % 20'000);
      auto& one = data.emplace_back(size, comm.rank() == 0 ? i : -1);
      auto count = static_cast<int64_t>(size);
      works.push_back(comm.start(comm.rank() == 0 ? send(one.data(), count, DType::i32, 1)
                                                  : recv(one.data(), count, DType::i32, 0)));
      if (i % 50 == 0)
        if (Status met = comm.run(barrier()); !met.ok()) return text_of(met);
    }
    for (auto& work : works)
      if (Status one = work->wait(); !one.ok()) return text_of(one);
    for (int i = 0; i < kMessages; i++)
      for (int32_t number : data[static_cast<size_t>(i)])
        if (number != i) return "message " + std::to_string(i) + " holds " + std::to_string(number);
    return "";
  });
}

TEST_CASE("A waiting rank uses no CPU time") {
  Gang gang({"aab"});
  double began = 0;
  gang.check([&](Communicator& comm) {
    Status first = comm.run(barrier());
    if (comm.rank() == 0) {
      began = cpu_seconds();
      std::this_thread::sleep_for(milliseconds(1'000));
      CHECK(cpu_seconds() - began < 0.2);
    }
    return text_of(comm.run(barrier())) + text_of(first);
  });
}

TEST_CASE("A rank that ends with unfinished calls notifies the others") {
  Gang gang({"aaa"});
  std::vector<float> data(10);
  auto work = gang[1].start(sum(data));
  gang.drop(1);
  CHECK(text_of(work->wait()) == "rank 1 left with unfinished calls");
  CHECK(text_of(gang[0].run(barrier())) == "rank 1 left with unfinished calls");
}

TEST_CASE(
    "A rank that has waited for all its calls may leave at once, without effect on the others") {
  for (int turn = 0; turn < 300; turn++) {
    Gang gang({"aaa"});
    std::vector<std::string> message(3);
    on_each(3, [&](int rank) {
      std::vector<float> data(10);
      message[static_cast<size_t>(rank)] = text_of(gang[rank].start(sum(data))->wait());
      gang.drop(rank);
    });
    REQUIRE(message == std::vector<std::string>(3));
  }
}

namespace {

struct InprocRank {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Rendezvous> rendezvous;
};

InprocRank make_inproc_rank(const GangOptions& options) {
  InprocRank made_rank{inproc(), nullptr};
  GangOptions with = options;
  with.transport = made_rank.transport.get();
  auto made = make_rendezvous(with);
  REQUIRE(made.ok());
  made_rank.rendezvous = std::move(*made);
  return made_rank;
}

}  // namespace

TEST_CASE("A rank without the gang's key cannot join") {
  GangOptions options = options_of({"ab"}, 0);
  InprocRank right = make_inproc_rank(options);
  options.rank = 1;
  options.node = "b";
  options.key = GENERATE(as<std::string>(), "another key", "");
  options.deadline_ms = 500;
  InprocRank wrong = make_inproc_rank(options);
  std::vector<std::string> addresses = {right.rendezvous->address(), wrong.rendezvous->address()};
  std::string outcomes[2];
  on_each(2, [&](int rank) {
    auto joined = (rank == 0 ? right : wrong).rendezvous->join(addresses);
    outcomes[rank] = joined.ok() ? text_of((*joined)->run(barrier())) : joined.error().message;
  });
  // Both check the proof of the other; the first to reject it closes the link.
  CHECK_THAT(outcomes[0], Catch::StartsWith("rank 1 is lost: "));
  CHECK(outcomes[1] != "");
}

TEST_CASE("Connections of strangers to a rank are rejected, and the gang still joins") {
  GangOptions options = options_of({"ab"}, 0);
  InprocRank first = make_inproc_rank(options);
  options.rank = 1;
  options.node = "b";
  InprocRank second = make_inproc_rank(options);
  std::vector<std::string> addresses = {first.rendezvous->address(), second.rendezvous->address()};
  struct Stranger : LinkHandler {
    void on_frame(std::string_view) override { frames++; }
    void on_down(const Error&) override { downs++; }
    std::atomic<int> frames{0}, downs{0};
  };
  auto transport = inproc();
  auto handler = std::make_shared<Stranger>();
  std::string place = addresses[1];
  place.pop_back();
  place = place.substr(place.rfind('\n') + 1);
  std::vector<std::shared_ptr<Link>> links;
  for (const std::string& message :
       {std::string("hello"), std::string(56, '\1'), std::string(1'000, 'x')}) {
    auto link = transport->connect(place, handler);
    REQUIRE(link.ok());
    (*link)->send(message);
    links.push_back(*link);
  }
  on_each(2, [&](int rank) {
    auto joined = (rank == 0 ? first : second).rendezvous->join(addresses);
    std::string outcomes =
        joined.ok() ? text_of((*joined)->run(barrier())) : joined.error().message;
    CHECK(outcomes == "");
  });
  for (int i = 0; i < 1'000 && handler->downs < 3; i++)
    std::this_thread::sleep_for(milliseconds(5));
  CHECK(handler->downs == 3);
  CHECK(handler->frames == 0);
}

TEST_CASE("Addresses that do not belong to a gang are rejected") {
  GangOptions options = options_of({"aa"}, 0);
  auto made = make_rendezvous(options);
  REQUIRE(made.ok());
  std::string own = (*made)->address();
  auto problem = [&](const std::vector<std::string>& addresses) {
    auto joined = (*made)->join(addresses);
    return joined.ok() ? "" : joined.error().message;
  };
  CHECK(problem({own}) == "1 addresses for 2 ranks");
  CHECK(problem({own, "what"}) ==
        "the address of rank 1 cannot be read: it is damaged or from another version of flow");
  CHECK(problem({own, own}) == "the address of rank 1 belongs to another rank");
  options.rank = 1;
  options.node = "elsewhere";
  auto other = make_rendezvous(options);
  REQUIRE(other.ok());
  CHECK(problem({own, (*other)->address()}) ==
        "rank 1 is on another node, and this rank has no transport to other nodes");
  options.rank = 2;
  CHECK_FALSE(make_rendezvous(options).ok());
  options.rank = 0;
  options.key.clear();
  options.listen = "10.1.2.3:0";
  auto transport = inproc();
  options.transport = transport.get();
  auto open = make_rendezvous(options);
  REQUIRE_FALSE(open.ok());
  CHECK(open.error().message ==
        "a gang without a key cannot listen at 10.1.2.3:0: any process could join it. Only "
        "loopback is "
        "open to it");
}

TEST_CASE("A rank that does not join is named") {
  GangOptions options = options_of({"aa"}, 0);
  options.join_ms = 200;
  auto first = make_rendezvous(options);
  options.rank = 1;
  auto second = make_rendezvous(options);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  auto joined = (*first)->join({(*first)->address(), (*second)->address()});
  REQUIRE_FALSE(joined.ok());
  CHECK_THAT(joined.error().message, Catch::StartsWith("rank 1 has not reached the gang for 0.") &&
                                         Catch::EndsWith("it has called nothing yet"));
}
