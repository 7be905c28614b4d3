// Memory that a front shares with a replica: what is accepted as such, and which side may use it
// when.
#include "engine/serve/memory/shared_memory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/serve/memory/front_memory.hpp"
#include "engine/serve/memory/replica_memory.hpp"

using namespace flow;
using Catch::Contains;

namespace {

constexpr uint64_t kMiB = 1u << 20;

std::unique_ptr<SharedMemory> new_memory(size_t size) {
  auto created = SharedMemory::create(size);
  REQUIRE(created.ok());
  return std::move(*created);
}

int copy_of_descriptor(const SharedMemory& memory) {
  int copy = ::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0);
  REQUIRE(copy >= 0);
  return copy;
}

/// A front's memory for a replica, and what it has said to it.
struct SharingFront {
  struct Offered {
    uint64_t id, size, replaces;
    bool is_for_outputs;
    int descriptor;
  };
  std::vector<Offered> offers;
  std::vector<uint64_t> given_back;
  std::vector<std::function<void()>> jobs;
  std::mutex mutex;
  std::vector<std::string> lines;
  ReplicaMemory::Budget budget;
  std::optional<ReplicaMemory> memory;

  SharingFront() {
    memory.emplace(budget,
                   ReplicaMemory::Callbacks{
                       .offer =
                           [this](const ReplicaMemory::Offer& offer) {
                             offers.push_back({offer.id, offer.memory.size(), offer.replaces,
                                               offer.is_for_outputs, offer.memory.descriptor()});
                           },
                       .give_back = [this](uint64_t id) { given_back.push_back(id); },
                       .post =
                           [this](std::function<void()> job) {
                             std::lock_guard lock(mutex);
                             jobs.push_back(std::move(job));
                           },
                       .log = [this](const std::string& line) { lines.push_back(line); }});
  }
  void run_jobs() {
    for (auto& job : std::exchange(jobs, {})) job();
  }
  /// The id of memory that is there now.
  uint64_t have_inputs(uint64_t bytes) {
    REQUIRE_FALSE(memory->take_inputs(bytes));
    REQUIRE(memory->set_mapped(offers.back().id));
    auto taken = memory->take_inputs(bytes);
    REQUIRE(taken);
    return taken->id;
  }
  uint64_t have_outputs(uint64_t bytes) {
    memory->note_outputs(bytes);
    REQUIRE(memory->set_mapped(offers.back().id));
    return offers.back().id;
  }
};

}  // namespace

TEST_CASE("what one process writes to shared memory, the other one reads") {
  auto memory = new_memory(5000);
  CHECK(memory->size() == 5000);
  auto other = SharedMemory::open(copy_of_descriptor(*memory), 5000);
  REQUIRE(other.ok());
  std::memset(memory->data(), 'a', 5000);
  CHECK(std::string((*other)->data(), 5000) == std::string(5000, 'a'));
  // Neither may change its size.
  CHECK(::ftruncate((*other)->descriptor(), 100) != 0);
  CHECK(::ftruncate((*other)->descriptor(), 10'000) != 0);
}

TEST_CASE("a private copy keeps its content at its address, and the shared one stays in use") {
  auto memory = new_memory(3 * kMiB);
  std::memset(memory->data(), 'a', memory->size());
  auto other = memory->open_again();
  REQUIRE(other.ok());
  const char* address = memory->data();
  REQUIRE(memory->make_private().ok());
  std::memset((*other)->data(), 'b', (*other)->size());
  CHECK(memory->data() == address);
  CHECK(std::string(memory->data(), memory->size()) == std::string(3 * kMiB, 'a'));
  std::memset(memory->data(), 'c', memory->size());
  CHECK((*other)->data()[0] == 'b');
}

TEST_CASE("a descriptor that is not shared memory of this size is rejected, and closed") {
  auto rejected = [](int descriptor, size_t size) -> std::string {
    auto opened = SharedMemory::open(descriptor, size);
    CHECK(::fcntl(descriptor, F_GETFD) < 0);
    return opened.ok() ? "" : opened.error().message;
  };
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK_THAT(rejected(ends[0], 4096), Contains("not a file"));
  ::close(ends[1]);
  auto memory = new_memory(4096);
  CHECK_THAT(rejected(copy_of_descriptor(*memory), 4097), Contains("another size"));
  CHECK_THAT(rejected(copy_of_descriptor(*memory), 0), Contains("another size"));
  for (int seals : {0, F_SEAL_GROW, F_SEAL_SHRINK}) {
    int unsealed = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(unsealed, 4096) == 0);
    REQUIRE(::fcntl(unsealed, F_ADD_SEALS, seals) == 0);
    CHECK_THAT(rejected(unsealed, 4096), Contains("its size can change"));
  }
  CHECK_THAT(rejected(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 4096), Contains("size"));
}

TEST_CASE("memory for inputs is used by one batch, from its mapping until its release") {
  SharingFront front;
  CHECK_FALSE(front.memory->take_inputs(kSharedBytesMin - 1));
  CHECK(front.offers.empty());
  CHECK_FALSE(front.memory->take_inputs(kMiB));
  REQUIRE(front.offers.size() == 1);
  CHECK(front.offers[0].size >= kMiB);
  CHECK_FALSE(front.offers[0].is_for_outputs);
  CHECK_FALSE(front.memory->take_inputs(kMiB));  // the replica has not mapped it
  CHECK(front.offers.size() == 1);
  uint64_t id = front.offers[0].id;
  CHECK_FALSE(front.memory->release_inputs(id));
  REQUIRE(front.memory->set_mapped(id));
  CHECK_FALSE(front.memory->set_mapped(id));
  CHECK_FALSE(front.memory->release_inputs(id));
  auto taken = front.memory->take_inputs(kMiB);
  REQUIRE(taken);
  CHECK(taken->id == id);
  CHECK(front.memory->outputs(id) == nullptr);  // it is for inputs
  CHECK_FALSE(front.memory->take_inputs(kMiB));
  CHECK(front.offers.size() == 2);
  CHECK(front.memory->release_inputs(id));
  CHECK_FALSE(front.memory->release_inputs(id));
  CHECK(front.memory->take_inputs(kMiB)->id == id);
}

TEST_CASE("memory grows with the batches, up to three of a kind and the budget of the front") {
  SharingFront front;
  const uint64_t all = *front.budget.left;
  CHECK_FALSE(front.memory->take_inputs(ReplicaMemory::kBytesMax + 1));
  CHECK(front.offers.empty());
  for (uint64_t size : {kMiB, 2 * kMiB, 3 * kMiB}) front.have_inputs(size);
  CHECK_FALSE(front.memory->take_inputs(9 * kMiB));  // all three are in use
  CHECK(front.offers.size() == 3);
  CHECK(front.memory->release_inputs(2));
  CHECK_FALSE(front.memory->take_inputs(9 * kMiB));
  REQUIRE(front.offers.size() == 4);
  CHECK(front.offers.back().replaces == 2);
  CHECK(*front.budget.left ==
        all - front.offers[0].size - front.offers[2].size - front.offers[3].size);
  front.memory.reset();
  CHECK(*front.budget.left == all);

  SharingFront poor;
  *poor.budget.left = 3 * kMiB;
  CHECK_FALSE(poor.memory->take_inputs(5 * kMiB));
  CHECK(poor.offers.empty());
  poor.have_inputs(kMiB);
  CHECK_FALSE(poor.memory->take_inputs(2 * kMiB));
  CHECK(poor.offers.size() == 1);
  CHECK(poor.lines.empty());
}

TEST_CASE("without shared memory the front says so once, and offers none") {
  SharingFront front;
  auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit files{}, none{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &files) == 0);
  none.rlim_max = files.rlim_max;  // the system gives no memfd any page then
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  CHECK_FALSE(front.memory->take_inputs(kMiB));
  CHECK_FALSE(front.memory->take_inputs(kMiB));
  front.memory->note_outputs(kMiB);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &files) == 0);
  ::signal(SIGXFSZ, before);
  CHECK(front.offers.empty());
  REQUIRE(front.lines.size() == 1);
  CHECK_THAT(front.lines[0], Contains("cannot create shared memory: File too large: tensors are"));
}

TEST_CASE("memory of outputs comes back when nothing refers to the bytes, on any thread") {
  SharingFront front;
  front.memory->note_outputs(kSharedBytesMin - 1);
  CHECK(front.offers.empty());
  uint64_t id = front.have_outputs(kMiB);
  CHECK(front.memory->outputs(id + 1) == nullptr);
  Bytes whole = front.memory->outputs(id);
  REQUIRE(whole->size() == front.offers[0].size);
  CHECK(front.memory->outputs(id) == nullptr);  // the front has it
  Bytes part = whole.part(100, 5);
  whole = nullptr;
  std::thread([bytes = std::move(part)]() mutable { bytes = nullptr; }).join();
  part = nullptr;
  CHECK(front.given_back.empty());
  front.run_jobs();
  CHECK(front.given_back == std::vector<uint64_t>{id});
  Bytes again = front.memory->outputs(id);
  CHECK_FALSE(again == nullptr);

  // What is too small is replaced, and lives as long as what refers to it.
  const char* data = again->data();
  uint64_t larger = 0;
  for (int i = 0; i < 3; i++) larger = front.have_outputs(4 * kMiB);
  CHECK(front.offers[1].replaces == id);
  CHECK(*data == 0);
  CHECK(front.memory->outputs(id) == nullptr);
  uint64_t left = *front.budget.left;
  again = nullptr;
  front.run_jobs();
  CHECK(*front.budget.left == left + front.offers[0].size);
  CHECK(front.given_back == std::vector<uint64_t>{id});
  Bytes last = front.memory->outputs(larger);
  front.memory.reset();
  CHECK(last->front() == 0);
}

TEST_CASE("a replica lends inputs to its tensors, and those that are kept become copies") {
  FrontMemory memory;
  auto first = new_memory(kMiB), second = new_memory(kMiB);
  CHECK_FALSE(memory.add(1, kMiB, false, 0, -1).ok());
  REQUIRE(memory.add(1, kMiB, false, 0, copy_of_descriptor(*first)).ok());
  REQUIRE(memory.add(2, kMiB, false, 0, copy_of_descriptor(*second)).ok());
  CHECK_FALSE(memory.add(2, kMiB, false, 0, copy_of_descriptor(*second)).ok());
  std::memset(first->data(), 'a', kMiB);
  std::memset(second->data(), 'b', kMiB);
  CHECK(memory.inputs(3) == nullptr);
  Bytes kept = memory.inputs(1).part(7, 100);
  CHECK(kept.is_own());
  CHECK(memory.inputs(1) == nullptr);
  CHECK(memory.take_released().empty());
  CHECK_FALSE(memory.is_held());
  Bytes dropped = memory.inputs(2);
  CHECK(memory.is_held());
  dropped = nullptr;
  CHECK(memory.reclaim() == std::vector<uint64_t>{1, 2});
  CHECK_FALSE(memory.is_held());
  std::memset(first->data(), 'c', kMiB);
  CHECK(*kept == std::string(100, 'a'));
  CHECK(memory.inputs(1)->front() == 'c');
  CHECK(memory.take_released() == std::vector<uint64_t>{1});
  memory.clear();
  CHECK(memory.inputs(1) == nullptr);
  CHECK(*kept == std::string(100, 'a'));
}

TEST_CASE("a replica writes outputs to the smallest memory that is large enough") {
  FrontMemory memory;
  auto small = new_memory(kMiB), large = new_memory(4 * kMiB), larger = new_memory(8 * kMiB);
  REQUIRE(memory.add(1, 4 * kMiB, true, 0, copy_of_descriptor(*large)).ok());
  REQUIRE(memory.add(2, kMiB, true, 0, copy_of_descriptor(*small)).ok());
  CHECK(memory.inputs(1) == nullptr);
  CHECK_FALSE(memory.take_outputs(5 * kMiB));
  CHECK(memory.take_outputs(1000)->id == 2);
  CHECK(memory.take_outputs(1000)->id == 1);
  CHECK_FALSE(memory.take_outputs(1000));
  CHECK(memory.return_outputs(1));
  CHECK_FALSE(memory.return_outputs(1));
  CHECK_FALSE(memory.return_outputs(9));
  REQUIRE(memory.add(3, 8 * kMiB, true, 1, copy_of_descriptor(*larger)).ok());
  CHECK(memory.take_outputs(2 * kMiB)->id == 3);
  CHECK_FALSE(memory.take_outputs(2 * kMiB));
}
