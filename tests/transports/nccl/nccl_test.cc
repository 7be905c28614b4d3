// NCCL collectives with a fake libnccl: which calls are made in which order, which fail, and what
// is reported. Needs neither a GPU nor NCCL.
#include <dlfcn.h>
#include <catch2/catch.hpp>

#include <cstddef>
#include <functional>
#include <thread>

#include "tests/transports/collective/gang.hpp"
#include "tests/transports/nccl/fake_nccl.hpp"
#include "transports/nccl/calls.hpp"
#include "transports/nccl/communicator.hpp"
#include "transports/nccl/nccl.hpp"

using namespace flow;

namespace {

FakeNccl& fake() {
  static auto* side = reinterpret_cast<FakeNcclOf>(
      ::dlsym(::dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL), "fake_nccl"))();
  return *side;
}

class TestStream final : public GpuStream {
 public:
  Status select() override {
    stream_.is_selected = true;
    return {};
  }
  void* handle() const override { return &stream_; }
  void* scratch() const override { return &scratch_; }
  Result<void*> mark() override {
    marks_++;
    return reinterpret_cast<void*>(stream_.queued.load());
  }
  Result<bool> has_passed(void* mark) override {
    if (is_broken) return environment_error("the GPU is lost (Xid 79)");
    return stream_.done.load() >= reinterpret_cast<uint64_t>(mark);
  }
  void forget(void*) override { marks_--; }
  Status follow() override { return {}; }
  Status lead(void*) override {
    leads++;
    return {};
  }
  std::atomic<int> leads{0};
  int marks() const { return marks_; }
  std::atomic<bool> is_broken{false};

 private:
  mutable FakeStream stream_;
  mutable int scratch_ = 0;
  std::atomic<int> marks_{0};
};

struct NcclGang {
  std::vector<std::shared_ptr<TestStream>> streams;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::string> problems;

  explicit NcclGang(int ranks, int64_t deadline_ms = 0, int64_t join_ms = 10'000,
                    const std::shared_ptr<Communicator>& cpu_communicator = nullptr)
      : communicators(static_cast<size_t>(ranks)), problems(communicators.size()) {
    std::vector<std::unique_ptr<Rendezvous>> rendezvous_all;
    std::vector<std::string> addresses;
    for (int rank = 0; rank < ranks; rank++) {
      NcclOptions options;
      options.gang = "gang";
      options.rank = rank;
      options.ranks = ranks;
      options.stream = streams.emplace_back(std::make_shared<TestStream>());
      options.deadline_ms = deadline_ms;
      options.join_ms = join_ms;
      options.cpu_communicator = rank == 0 ? cpu_communicator : nullptr;
      auto made = make_nccl_rendezvous(options);
      REQUIRE(made.ok());
      addresses.push_back((*made)->address());
      rendezvous_all.push_back(std::move(*made));
    }
    each(ranks, [&](size_t rank) {
      auto joined = rendezvous_all[rank]->join(addresses);
      if (joined.ok())
        communicators[rank] = std::move(*joined);
      else
        problems[rank] = joined.error().message;
    });
  }
  static void each(int ranks, const std::function<void(size_t)>& run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; rank++) threads.emplace_back(run, static_cast<size_t>(rank));
    for (auto& thread : threads) thread.join();
  }
  std::vector<std::string> run(const std::function<Status(Communicator&)>& what) {
    std::vector<std::string> said(communicators.size());
    each(static_cast<int>(said.size()), [&](size_t rank) {
      Status status = what(*communicators[rank]);
      if (!status.ok()) said[rank] = status.error().message;
    });
    return said;
  }
};

CollectiveCall on_gpu(CollectiveCall call) {
  call.is_device = true;
  return call;
}

/// Checks that the fake recorded no misuse before and after each test.
struct Fresh {
  Fresh() { reset(); }
  ~Fresh() {
    const char* misuse = fake().misuse;
    CHECK((misuse == nullptr ? "" : misuse) == std::string());
    CHECK(fake().made == fake().aborted + fake().destroyed);
    reset();
  }
  static void reset() {
    fake().init_polls = 3;
    fake().init_hangs = false;
    fake().queue_hangs = false;
    fake().launch_polls = 0;
    fake().calls = 0;
    fake().launches = 0;
    fake().init_error = 0;
    fake().failing_call = 0;
    fake().hanging_call = 0;
    for (auto* count :
         {&fake().made, &fake().aborted, &fake().destroyed, &fake().finalized, &fake().shrunk})
      *count = 0;
    fake().misuse = nullptr;
  }
};

const std::vector<std::string> kFine(3);

}  // namespace

TEST_CASE("NCCL collectives give the expected results and end in order") {
  Fresh fresh;
  {
    NcclGang gang(3);
    REQUIRE(gang.problems == kFine);
    CHECK(gang.communicators[1]->description() == "3 ranks by NCCL 2.28.9");
    CHECK(gang.run([](Communicator& comm) -> Status {
      auto rank = static_cast<float>(comm.rank());
      std::vector<float> data(3, rank + 1), all(9), own(1);
      FLOW_TRY(
          comm.run(on_gpu(all_reduce(data.data(), data.data(), 3, DType::f32, ReduceOp::mean))));
      if (data != std::vector<float>(3, 2)) return internal_error("all_reduce");
      data = {rank, rank + 10, rank + 20};
      FLOW_TRY(comm.run(on_gpu(all_gather(data.data(), all.data(), 3, DType::f32))));
      if (all != std::vector<float>{0, 10, 20, 1, 11, 21, 2, 12, 22})
        return internal_error("all_gather");
      FLOW_TRY(
          comm.run(on_gpu(reduce_scatter(data.data(), own.data(), 1, DType::f32, ReduceOp::max))));
      if (own[0] != 2 + 10 * rank) return internal_error("reduce_scatter");
      FLOW_TRY(comm.run(on_gpu(broadcast(own.data(), 1, DType::f32, 2))));
      if (own[0] != 22) return internal_error("broadcast");
      std::vector<int64_t> out = {comm.rank() * 10, comm.rank() * 10 + 1, comm.rank() * 10 + 2},
                           in(3);
      FLOW_TRY(comm.run(on_gpu(all_to_all(out.data(), in.data(), 1, DType::i64))));
      if (in != std::vector<int64_t>{comm.rank(), 10 + comm.rank(), 20 + comm.rank()})
        return internal_error("all_to_all");
      return comm.run(barrier());
    }) == kFine);
    auto first = gang.communicators[0]->start(on_gpu(barrier()));
    CHECK_FALSE(first->is_done());
    gang.communicators[1]->start(barrier());
    gang.communicators[2]->start(barrier());
    CHECK(first->wait().ok());
    for (int i = 0;
         i < 1'000 &&
         gang.streams[0]->marks() + gang.streams[1]->marks() + gang.streams[2]->marks() > 0;
         i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (auto& stream : gang.streams) CHECK(stream->marks() == 0);
  }
  CHECK(fake().finalized == 3);
  CHECK(fake().aborted == 0);
}

TEST_CASE("A thread spins for a launch, and sleeps twice as long each time only after that") {
  CHECK(nccl::sleep_of(0) == nccl::kSleepMin);
  CHECK(nccl::sleep_of(3) == nccl::kSleepMin * 8);
  CHECK(nccl::sleep_of(1000) == nccl::kSleepMax);
  Fresh fresh;
  fake().init_polls = 0;
  NcclGang gang(2);
  nccl::NcclWaits& waits = nccl::nccl_waits();
  for (int64_t bytes : {4, 1 << 15, 1 << 20}) {
    INFO(bytes << " bytes");
    for (int launch_polls : {0, 1, 100, nccl::kSpins, nccl::kSpins + 4}) {
      fake().launch_polls = launch_polls;
      fake().calls = 0;
      fake().launches = 0;
      waits.spins = 0;
      waits.sleeps = 0;
      CHECK(gang.run([&](Communicator& comm) {
        std::vector<float> data(static_cast<size_t>(bytes / 4), 1);
        Status status = comm.run(
            on_gpu(all_reduce(data.data(), data.data(), bytes / 4, DType::f32, ReduceOp::sum)));
        return data.back() == 2 ? status : internal_error("all_reduce");
      }) == std::vector<std::string>(2));
      CHECK(fake().calls == 2);  // one for each rank, each one thread of NCCL's
      CHECK(fake().launches == 2);
      int spins = std::min(launch_polls, nccl::kSpins);
      CHECK(waits.spins <= static_cast<uint64_t>(2 * spins));  // the watchers poll too
      CHECK(waits.sleeps <= static_cast<uint64_t>(2 * (launch_polls - spins)));
    }
  }
}

TEST_CASE("Several calls at once are one launch, and each has its result") {
  Fresh fresh;
  NcclGang gang(3);
  CHECK(gang.run([](Communicator& comm) -> Status {
    float a = 1, b = static_cast<float>(comm.rank());
    std::vector<int64_t> out = {1, 2, comm.rank()}, in(3);
    float on_host = 5;
    auto works = comm.start_all({
        on_gpu(all_reduce(&a, &a, 1, DType::f32, ReduceOp::sum)),
        all_reduce(&on_host, &on_host, 1, DType::f32, ReduceOp::sum),
        on_gpu(broadcast(&b, 1, DType::f32, 2)),
        on_gpu(all_to_all(out.data(), in.data(), 1, DType::i64)),
    });
    if (works.size() != 4) return internal_error("the number of works");
    Status host = works[1]->wait();
    FLOW_TRY(works[0]->wait());
    FLOW_TRY(works[2]->wait());
    FLOW_TRY(works[3]->wait());
    if (host.ok() || on_host != 5) return internal_error("host memory was not rejected");
    std::vector<int64_t> expected(3, comm.rank() + 1);
    if (comm.rank() == 2) expected = {0, 1, 2};
    if (a != 3 || b != 2 || in != expected) return internal_error("the results");
    return {};
  }) == kFine);
  CHECK(fake().launches == 3);
  CHECK(fake().calls == 3 * (2 + 6));
}

TEST_CASE("A group that fails ends all of its calls with one cause") {
  Fresh fresh;
  fake().failing_call = 2;
  NcclGang gang(2);
  auto said = gang.run([](Communicator& comm) -> Status {
    float a = 1, b = 1;
    auto works = comm.start_all({on_gpu(all_reduce(&a, &a, 1, DType::f32, ReduceOp::sum)),
                                 on_gpu(all_reduce(&b, &b, 1, DType::f32, ReduceOp::sum))});
    Status first = works[0]->wait(), second = works[1]->wait();
    if (first.ok() || second.ok()) return internal_error("a call succeeded");
    return first.error().message == second.error().message ? first : internal_error("two causes");
  });
  for (size_t rank = 0; rank < 2; rank++)
    CHECK(said[rank] == "rank " + std::to_string(rank) +
                            ": NCCL failed in all_reduce(sum) of 1 f32 (#1) and 1 more: "
                            "remote process exited or there was a network error");
}

TEST_CASE("Sends and receives by NCCL") {
  Fresh fresh;
  NcclGang gang(2);
  CHECK(gang.run([](Communicator& comm) {
    int32_t data = comm.rank() == 0 ? 7 : 0;
    Status status = comm.run(
        on_gpu(comm.rank() == 0 ? send(&data, 1, DType::i32, 1) : recv(&data, 1, DType::i32, 0)));
    return data == 7 ? status : internal_error("it did not come");
  }) == std::vector<std::string>(2));
}

TEST_CASE("A gang that does not come up fails at the deadline") {
  Fresh fresh;
  fake().init_hangs = true;
  NcclGang gang(2, 0, 50);
  CHECK(gang.problems[1] ==
        "rank 1: NCCL has not joined the gang of 2 ranks in 50 ms: a rank has not joined, or "
        "cannot be reached");
  CHECK(fake().aborted == 2);
}

TEST_CASE("An immediate error of NCCL is reported") {
  Fresh fresh;
  fake().init_error = 4;
  NcclGang gang(2);
  CHECK(gang.problems[0] == "rank 0: NCCL failed in joining the gang: invalid argument");
}

TEST_CASE("An asynchronous error ends the running calls, is named, and aborts the communicator") {
  Fresh fresh;
  fake().failing_call = 2;
  NcclGang gang(3);
  auto said = gang.run([](Communicator& comm) -> Status {
    float data = 1;
    FLOW_TRY(comm.run(barrier()));
    return comm.run(on_gpu(all_reduce(&data, &data, 1, DType::f32, ReduceOp::sum)));
  });
  for (size_t rank = 0; rank < 3; rank++)
    CHECK(said[rank] == "rank " + std::to_string(rank) +
                            ": NCCL failed in all_reduce(sum) of 1 f32 (#2): remote process exited "
                            "or there was a network error");
  CHECK(fake().aborted == 3);
  CHECK(gang.run([](Communicator& comm) { return comm.run(barrier()); }) == said);
}

TEST_CASE("A collective that hangs on the GPU is ended at the deadline") {
  Fresh fresh;
  fake().hanging_call = 1;
  NcclGang gang(2, 50);
  auto said = gang.run([](Communicator& comm) { return comm.run(barrier()); });
  CHECK(said[0] ==
        "rank 0: barrier (#1) has not ended for 50 ms on its GPU: a rank has not reached it, or "
        "hangs");
  CHECK(fake().aborted == 2);
}

TEST_CASE("A lost GPU is reported as lost") {
  Fresh fresh;
  fake().hanging_call = 1;
  NcclGang gang(2);
  gang.streams[1]->is_broken = true;
  auto work = gang.communicators[1]->start(barrier());
  CHECK(work->wait().error().message == "the GPU is lost (Xid 79)");
}

TEST_CASE("abort() ends a wait on a GPU from another thread") {
  Fresh fresh;
  NcclGang gang(2);
  auto work = gang.communicators[0]->start(barrier());
  std::thread([&] { gang.communicators[0]->abort("it was cancelled"); }).join();
  CHECK(work->wait().error().message == "rank 0 ended the gang: it was cancelled");
  CHECK(fake().aborted == 1);
}

TEST_CASE("abort() ends a call that NCCL does not accept") {
  Fresh fresh;
  NcclGang gang(2);
  fake().queue_hangs = true;
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gang.communicators[0]->abort("it was cancelled");
  });
  CHECK(gang.communicators[0]->run(barrier()).error().message ==
        "rank 0 ended the gang: it was cancelled");
  aborter.join();
  fake().queue_hangs = false;
}

TEST_CASE("The remaining ranks continue as a smaller gang") {
  Fresh fresh;
  NcclGang gang(3);
  gang.communicators[1]->abort("it is gone");
  std::vector<std::unique_ptr<Communicator>> fewer(3);
  NcclGang::each(3, [&](size_t rank) {
    if (rank == 1) return;
    auto shrunk = shrink_nccl(*gang.communicators[rank], {1});
    if (shrunk.ok()) fewer[rank] = std::move(*shrunk);
  });
  REQUIRE(fewer[0] != nullptr);
  REQUIRE(fewer[2] != nullptr);
  CHECK(fewer[2]->rank() == 1);
  CHECK(fewer[2]->ranks() == 2);
  auto other = fewer[2]->start(barrier());
  CHECK(fewer[0]->run(barrier()).ok());
  CHECK(other->wait().ok());
  CHECK_FALSE(gang.communicators[0]->run(barrier()).ok());
}

TEST_CASE("Host memory and addresses of other GPUs are rejected") {
  Fresh fresh;
  NcclGang gang(2);
  float data = 1;
  CHECK_THAT(gang.communicators[0]->run(broadcast(&data, 1, DType::f32, 0)).error().message,
             Catch::Contains("the tensor is in host memory: move it first"));
  NcclOptions options;
  options.ranks = 2;
  options.stream = std::make_shared<TestStream>();
  auto made = make_nccl_rendezvous(options);
  REQUIRE(made.ok());
  std::string own = (*made)->address();
  CHECK((*made)->join({own, own}).error().message ==
        "the address of rank 1 belongs to another rank, or to another version of flow");
  CHECK((*made)->join({"flow-nccl 1\n0\n2\nno id", "flow-nccl 1\n1\n2\n"}).error().message ==
        "the address of rank 0 has no NCCL id");
}

TEST_CASE("The rank whose GPU cannot use NCCL is named") {
  RankGpu one{"GPU-a", "NCCL 2.28.9", ""}, other{"GPU-b", "NCCL 2.28.11", ""};
  CHECK(nccl_unavailable_reason({one, other}) == "");
  CHECK(nccl_unavailable_reason({one, other, one}) == "ranks 0 and 2 share GPU-a");
  CHECK(nccl_unavailable_reason({one, {"MIG-7", "NCCL 2.28.9", ""}}) ==
        "rank 1 has a part of a GPU in MIG mode, MIG-7");
  CHECK(nccl_unavailable_reason({one, {"GPU-b", "NCCL 2.27.9", ""}}) ==
        "rank 0 has NCCL 2.28.9 and rank 1 has NCCL 2.27.9");
  CHECK(nccl_unavailable_reason({one, {"GPU-b", "", "it is on strike"}}) ==
        "rank 1: it is on strike");
}

namespace {

/// Communicator of CPU ranks whose state a test sets.
class FakeCpuCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  Status run(const CollectiveCall&) override { return {}; }
  std::shared_ptr<CollectiveWork> start(const CollectiveCall&) override { return nullptr; }
  Status state() const override {
    if (is_fine) return {};
    return environment_error("rank 1: its process 7 has ended");
  }
  void abort(const std::string& reason) override { abort_reason = reason; }
  std::string description() const override { return ""; }
  std::atomic<bool> is_fine{true};
  std::string abort_reason;
};

/// One GPU communicator per rank of a CPU gang; the stream of rank 1 may be missing.
std::vector<Result<GpuGang>> meet_on_gpus(flow::Gang& cpus, bool has_stream,
                                          std::vector<std::shared_ptr<TestStream>>& streams) {
  std::vector<Result<GpuGang>> all(2, internal_error("it did not come back"));
  streams.assign(2, nullptr);
  on_each(2, [&](int rank) {
    auto at = static_cast<size_t>(rank);
    NcclOptions options;
    options.gang = "gang";
    options.rank = rank;
    options.ranks = 2;
    options.cpu_communicator = std::shared_ptr<Communicator>(&cpus[rank], [](Communicator*) {});
    all[at] = join_gpus(options, {"GPU-" + std::to_string(rank), "NCCL 2.28.9", ""},
                        [&]() -> Result<std::shared_ptr<GpuStream>> {
                          if (rank == 1 && !has_stream) return environment_error("no GPU here");
                          streams[at] = std::make_shared<TestStream>();
                          return std::shared_ptr<GpuStream>(streams[at]);
                        });
  });
  return all;
}

}  // namespace

TEST_CASE("A rank that dies is the cause on GPUs, whatever error NCCL reports") {
  Fresh fresh;
  bool says_first = GENERATE(true, false);
  (says_first ? fake().failing_call : fake().hanging_call) = 1;
  auto cpu_communicator = std::make_shared<FakeCpuCommunicator>();
  NcclGang gpus(2, 0, 10'000, cpu_communicator);
  cpu_communicator->is_fine = false;
  auto work = gpus.communicators[0]->start(on_gpu(barrier()));
  CHECK(work->wait().error().message == "rank 1: its process 7 has ended");
}

TEST_CASE("A failure on GPUs alone is reported to the CPU communicator") {
  Fresh fresh;
  fake().failing_call = 1;
  auto cpu_communicator = std::make_shared<FakeCpuCommunicator>();
  NcclGang gpus(2, 0, 10'000, cpu_communicator);
  std::string why = gpus.communicators[0]->run(on_gpu(barrier())).error().message;
  CHECK_THAT(why, Catch::StartsWith("rank 0: NCCL failed in barrier (#1)"));
  gpus.communicators.clear();  // its watcher has reported the failure by then
  CHECK(cpu_communicator->abort_reason == why);
}

TEST_CASE("Either all ranks of a gang use NCCL or none does") {
  Fresh fresh;
  flow::Gang cpus({one_node(2)});
  std::vector<std::shared_ptr<TestStream>> streams;
  SECTION("all") {
    auto all = meet_on_gpus(cpus, true, streams);
    REQUIRE(all[0].ok());
    REQUIRE(all[1].ok());
    CHECK(all[1]->route == "collectives between GPUs go by NCCL 2.28.9");
    std::vector<std::string> said(2);
    on_each(2, [&](int rank) {
      auto at = static_cast<size_t>(rank);
      Communicator& comm = *all[at]->communicator;
      float data = 1, own = 2;
      auto work = comm.start(on_gpu(all_reduce(&data, &data, 1, DType::f32, ReduceOp::sum)));
      auto host = comm.run(all_reduce(&own, &own, 1, DType::f32, ReduceOp::sum));
      said[at] += comm.takes_device() && host.ok() && own == 4 ? "" : "on CPUs; ";
      said[at] += work->wait().ok() && streams[at]->leads == 1 ? "" : "kernels do not follow; ";
      // A list is one launch with one event behind it.
      int launches = fake().launches;
      float c = 1, d = 2;
      auto works = comm.start_all({on_gpu(all_reduce(&c, &c, 1, DType::f32, ReduceOp::sum)),
                                   on_gpu(all_reduce(&d, &d, 1, DType::f32, ReduceOp::max))});
      for (const auto& each : works) said[at] += text_of(each->wait());
      said[at] += fake().launches - launches <= 2 ? "" : "a list is not one launch; ";
      said[at] += comm.run(barrier()).ok() ? "" : "barrier; ";
      // Only after the GPU has finished.
      said[at] += comm.run(leave()).ok() && work->is_done() && data == 2 ? "" : "leaving; ";
      said[at] += text_of(comm.run(on_gpu(send(&data, 1, DType::f32, 1 - rank))));
    });
    for (size_t rank = 0; rank < 2; rank++)
      CHECK(said[rank] == "send of 1 f32 to rank " + std::to_string(1 - rank) +
                              ": messages are of the host's memory: move it first");
  }
  SECTION("none") {
    auto all = meet_on_gpus(cpus, false, streams);
    for (auto& one : all) {
      REQUIRE(one.ok());
      CHECK(one->route ==
            "tensors on GPUs go through the hosts' memory, not by NCCL: rank 1: no GPU here");
      CHECK_FALSE(one->communicator->takes_device());
    }
    CHECK(fake().made == 0);
  }
}

TEST_CASE("Libraries that must not be used are reported with what to do") {
  CHECK_THAT(nccl::load("/nowhere/libnccl.so").problem,
             Catch::StartsWith("it can't be loaded: /nowhere"));
  CHECK_THAT(nccl::load(FAKE_NCCL_OLD).problem, Catch::StartsWith("NCCL 2.13.4 is too old"));
  CHECK_THAT(nccl::load(FAKE_NCCL_BAD).problem,
             Catch::StartsWith("NCCL 2.28.5 hangs where a rank is lost"));
  CHECK(nccl::load(FAKE_NCCL).problem == "");
  CHECK(nccl::load(FAKE_NCCL_OLD).calls.shrink == nullptr);
}
