// A fake libnccl.so.2: its ranks are threads of one process, GPU memory is host memory, and a call
// is done once every rank has queued it. It is strict: misuse of NCCL is recorded.
#include "tests/transports/nccl/fake_nccl.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using flow::FakeNccl;
using flow::FakeStream;

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7;

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

enum class What { all_reduce, reduce_scatter, all_gather, broadcast, message };

struct Call {
  What what = What::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  int type = 0, op = 0, peer = 0;
  FakeStream* stream = nullptr;
  std::vector<Call> group;  // sends and receives
};

struct Gang {
  explicit Gang(int ranks) : calls(static_cast<size_t>(ranks)) {}
  int joined = 0;
  std::vector<std::map<uint64_t, Call>> calls;  // unfinished calls, by rank
};

struct Comm {
  std::shared_ptr<Gang> gang;
  int rank = 0, ranks = 0, polls = 0, launch_polls = 0;
  bool is_up = false, is_finalized = false, has_failed = false;
  uint64_t queued = 0;
};

FakeNccl fake;
std::mutex mutex;
std::map<std::string, std::shared_ptr<Gang>> gangs;
uint64_t ids = 0;
thread_local int group_depth = 0;
thread_local std::vector<Call> grouped;
thread_local Comm* group_comm = nullptr;  // the group's calls are of one communicator

void misuse(const char* what) {
  const char* none = nullptr;
  fake.misuse.compare_exchange_strong(none, what);
}

size_t size_of(int type) {
  return type == 1 ? 1 : type == 6 || type == 9 ? 2 : type == 4 || type == 8 ? 8 : 4;
}

template <typename T>
void combine(const std::vector<Call>& calls, size_t at, size_t count, int op, void* to) {
  std::vector<T> result(count);
  for (size_t i = 0; i < count; i++) {
    auto value = [&](size_t rank) { return static_cast<const T*>(calls[rank].from)[at + i]; };
    T all = value(0);
    for (size_t rank = 1; rank < calls.size(); rank++)
      all = op == 2   ? std::max(all, value(rank))
            : op == 3 ? std::min(all, value(rank))
                      : static_cast<T>(all + value(rank));
    result[i] = op == 4 ? static_cast<T>(all / static_cast<T>(calls.size())) : all;
  }
  std::memcpy(to, result.data(), count * sizeof(T));
}

void combine(const std::vector<Call>& calls, size_t at, void* to) {
  const Call& call = calls[0];
  if (call.type == 7) return combine<float>(calls, at, call.count, call.op, to);
  if (call.type == 8) return combine<double>(calls, at, call.count, call.op, to);
  if (call.type == 4) return combine<int64_t>(calls, at, call.count, call.op, to);
  if (call.type == 2) return combine<int32_t>(calls, at, call.count, call.op, to);
  if (call.type == 1) return combine<uint8_t>(calls, at, call.count, call.op, to);
  misuse("a type that the fake does not add up");
}

/// Matches the sends and receives in all ranks' groups, in their order.
void pass(std::vector<Call>& calls) {
  for (size_t from = 0; from < calls.size(); from++)
    for (size_t to = 0; to < calls.size(); to++) {
      std::vector<Call*> sent, came;
      for (Call& one : calls[from].group)
        if (one.from != nullptr && one.peer == static_cast<int>(to)) sent.push_back(&one);
      for (Call& one : calls[to].group)
        if (one.to != nullptr && one.peer == static_cast<int>(from)) came.push_back(&one);
      if (sent.size() != came.size()) misuse("a group whose sends and receives do not match");
      for (size_t i = 0; i < std::min(sent.size(), came.size()); i++)
        std::memcpy(came[i]->to, sent[i]->from, sent[i]->count * size_of(sent[i]->type));
    }
}

void perform(std::vector<Call>& calls) {
  const Call first = calls[0];
  size_t bytes = first.count * size_of(first.type);
  std::vector<std::vector<char>> results(calls.size());
  for (size_t rank = 0; rank < calls.size(); rank++) {
    auto& result = results[rank];
    if (first.what == What::all_reduce || first.what == What::reduce_scatter) {
      result.resize(bytes);
      combine(calls, first.what == What::all_reduce ? 0 : rank * first.count, result.data());
    } else if (first.what == What::all_gather) {
      for (const Call& one : calls) {
        const char* from = static_cast<const char*>(one.from);
        result.insert(result.end(), from, from + bytes);
      }
    } else if (first.what == What::broadcast) {
      const char* from = static_cast<const char*>(calls[static_cast<size_t>(first.peer)].from);
      result.assign(from, from + bytes);
    }
  }
  if (first.what == What::message) pass(calls);
  for (size_t rank = 0; rank < calls.size(); rank++) {
    if (first.what != What::message)
      std::memcpy(calls[rank].to, results[rank].data(), results[rank].size());
    calls[rank].stream->done++;
  }
}

/// With the mutex held.
int queue(Comm* comm, const Call& call) {
  if (comm == nullptr || !comm->is_up)
    return misuse("a call before the communicator was up"), kInvalidArgument;
  if (comm->is_finalized || comm->has_failed)
    return misuse("a call after its end"), kInvalidArgument;
  if (!call.stream->is_selected) misuse("a call before the GPU was selected");
  if (fake.queue_hangs) return kInProgress;
  uint64_t number = ++comm->queued;
  call.stream->queued++;
  if (number == fake.failing_call) {
    comm->has_failed = true;
    return kSuccess;
  }
  if (number == fake.hanging_call) return kSuccess;
  auto& gang = *comm->gang;
  gang.calls[static_cast<size_t>(comm->rank)][number] = call;
  std::vector<Call> all;
  for (auto& ours : gang.calls)
    if (auto found = ours.find(number); found != ours.end()) all.push_back(found->second);
  if (all.size() < gang.calls.size()) return kSuccess;
  for (auto& ours : gang.calls) ours.erase(number);
  perform(all);
  return kSuccess;
}

/// The calls of a group, or one outside of any: messages pass together, before the others.
int launch(Comm* comm, const std::vector<Call>& calls) {
  std::lock_guard lock(mutex);
  fake.launches++;
  fake.calls += static_cast<int>(calls.size());
  Call messages;
  messages.what = What::message;
  std::vector<Call> all;
  for (const Call& call : calls) {
    if (call.stream != calls[0].stream) misuse("a group of several streams");
    if (call.what == What::message) messages.group.push_back(call);
    if (call.what != What::message) all.push_back(call);
  }
  messages.stream = calls[0].stream;
  if (!messages.group.empty()) all.insert(all.begin(), messages);
  if (comm != nullptr && comm->launch_polls > 0) misuse("a call while another is in progress");
  for (const Call& call : all)
    if (int code = queue(comm, call); code != kSuccess) return code;
  comm->launch_polls = fake.launch_polls;
  return comm->launch_polls > 0 ? kInProgress : kSuccess;
}

int call_nccl(Comm* comm, const Call& call) {
  if (group_depth == 0) return launch(comm, {call});
  if (!grouped.empty() && group_comm != comm) misuse("a group of several communicators");
  grouped.push_back(call);
  group_comm = comm;
  return kSuccess;
}

bool is_right(const Config* config) {
  return config != nullptr && config->magic == 0xcafebeef && config->blocking == 0 &&
         config->size >= 64;
}

Comm* join(const std::string& key, int ranks, int rank) {
  auto& gang = gangs[key];
  if (!gang) gang = std::make_shared<Gang>(ranks);
  gang->joined++;
  auto* comm = new Comm;
  comm->gang = gang;
  comm->rank = rank;
  comm->ranks = ranks;
  fake.made++;
  return comm;
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl() { return &fake; }

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &++ids, sizeof ids);
  return kSuccess;
}

int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  std::lock_guard lock(mutex);
  if (!is_right(config)) misuse("a configuration that blocks, or is none");
  if (fake.init_error != 0) return fake.init_error;
  *comm = join(std::string(id.bytes, sizeof id.bytes), ranks, rank);
  return kInProgress;
}

int ncclCommGetAsyncError(Comm* comm, int* state) {
  std::lock_guard lock(mutex);
  *state = comm->has_failed ? kRemoteError : kSuccess;
  if (comm->is_up && (fake.queue_hangs || comm->launch_polls-- > 0)) *state = kInProgress;
  comm->launch_polls = std::max(comm->launch_polls, 0);
  if (comm->is_up) return kSuccess;
  comm->is_up =
      !fake.init_hangs && comm->gang->joined == comm->ranks && comm->polls++ >= fake.init_polls;
  if (!comm->is_up) *state = kInProgress;
  return kSuccess;
}

int ncclCommFinalize(Comm* comm) {
  std::lock_guard lock(mutex);
  comm->is_finalized = true;
  fake.finalized++;
  return kSuccess;
}

int ncclCommDestroy(Comm* comm) {
  std::lock_guard lock(mutex);
  if (!comm->is_finalized) misuse("a communicator that was destroyed before it was finalized");
  delete comm;
  fake.destroyed++;
  return kSuccess;
}

int ncclCommAbort(Comm* comm) {
  std::lock_guard lock(mutex);
  delete comm;
  fake.aborted++;
  return kSuccess;
}

#ifndef FAKE_NCCL_OLD
int ncclCommShrink(Comm* comm, int* gone, int count, Comm** fewer, Config* config, int flags) {
  std::lock_guard lock(mutex);
  if (!is_right(config) || flags != 1) misuse("a shrink that blocks, or ends nothing");
  std::string key = "fewer of " + std::to_string(reinterpret_cast<uintptr_t>(comm->gang.get()));
  int rank = comm->rank;
  for (int i = 0; i < count; i++) rank -= gone[i] < comm->rank ? 1 : 0;
  *fewer = join(key, comm->ranks - count, rank);
  fake.shrunk++;
  return kInProgress;
}
#endif

int ncclGroupStart() {
  group_depth++;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--group_depth > 0 || grouped.empty()) return kSuccess;
  std::vector<Call> calls;
  calls.swap(grouped);
  return launch(group_comm, calls);
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm,
                  FakeStream* stream) {
  return call_nccl(comm, {What::all_reduce, from, to, count, type, op, 0, stream, {}});
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, Comm* comm,
                      FakeStream* stream) {
  return call_nccl(comm, {What::reduce_scatter, from, to, count, type, op, 0, stream, {}});
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm,
                  FakeStream* stream) {
  return call_nccl(comm, {What::all_gather, from, to, count, type, 0, 0, stream, {}});
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm,
                  FakeStream* stream) {
  return call_nccl(comm, {What::broadcast, from, to, count, type, 0, root, stream, {}});
}
int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, FakeStream* stream) {
  return call_nccl(comm, {What::message, from, nullptr, count, type, 0, peer, stream, {}});
}
int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, FakeStream* stream) {
  return call_nccl(comm, {What::message, nullptr, to, count, type, 0, peer, stream, {}});
}

const char* ncclGetErrorString(int code) {
  return code == kRemoteError ? "remote process exited or there was a network error"
                              : "invalid argument";
}

}  // extern "C"
