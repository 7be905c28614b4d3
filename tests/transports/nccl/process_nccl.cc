// A fake libnccl.so.2 for ranks that are processes with emulated GPUs. Calls are queued on the
// emulator's streams, and data passes through files in a folder that the unique id names.
// Misuse of NCCL ends the process with a message on stderr.
//
// FLOW_FAKE_NCCL_LOG names a file that gets one line per call: "rank what count type", and before
// those of a group with collectives "rank group calls 0".
// FLOW_FAKE_NCCL_HANG="rank number": this call of this rank never begins.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flow/collective.hpp"
#include "transports/collective/reduce.hpp"

namespace {

constexpr int kSuccess = 0, kSystemError = 2, kInProgress = 7;
constexpr int kAverage = 4;

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

[[noreturn]] void misuse(const std::string& what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what.c_str());
  std::abort();
}

// ---- the emulator, which is part of the program that loads this library

template <typename Function>
Function emulators(const char* name) {
  auto found = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) misuse(std::string("no ") + name + ": this is no program of the emulator");
  return found;
}

void put(void* stream, void (*work)(void*), void* argument) {
  emulators<void (*)(void*, void (*)(void*), void*)>("flow_emulator_put")(stream, work, argument);
}

void copy(void* to, const void* from, size_t bytes, bool to_device) {
  if (bytes == 0) return;
  auto call = emulators<bool (*)(void*, const void*, size_t, bool)>("flow_emulator_copy");
  if (!call(to, from, bytes, to_device)) misuse("memory that is not the GPU's");
}

// ---- calls

enum class What { all_reduce, reduce_scatter, all_gather, broadcast, send, recv };
constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                  "broadcast",  "send",           "recv"};

struct Call {
  What what = What::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  int type = 0, op = 0, peer = 0;
};

struct Gang {
  std::string folder;
  int rank = 0, ranks = 0;
  std::atomic<bool> is_aborted{false};
};

struct Job {
  std::shared_ptr<Gang> gang;
  std::vector<Call> calls;  // the calls of a group
  uint64_t number = 0;
};

struct Comm {
  std::shared_ptr<Gang> gang;
  bool is_up = false, is_finalized = false;
  uint64_t queued = 0;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> grouped;
thread_local Comm* group_comm = nullptr;
thread_local void* group_stream = nullptr;

flow::DType dtype_of(int type) {
  switch (type) {
    case 1:
      return flow::DType::u8;
    case 2:
      return flow::DType::i32;
    case 4:
      return flow::DType::i64;
    case 6:
      return flow::DType::f16;
    case 7:
      return flow::DType::f32;
    case 8:
      return flow::DType::f64;
    case 9:
      return flow::DType::bf16;
    default:
      misuse("a type that flow has not");
  }
}

flow::ReduceOp op_of(int op) {
  return op == 0   ? flow::ReduceOp::sum
         : op == 2 ? flow::ReduceOp::max
         : op == 3 ? flow::ReduceOp::min
                   : flow::ReduceOp::mean;
}

size_t bytes_of(const Call& call) { return call.count * flow::dtype_size(dtype_of(call.type)); }

// ---- files

std::string file_of(const Gang& gang, uint64_t number, int from, const std::string& more = "") {
  return gang.folder + "/" + std::to_string(number) + "." + std::to_string(from) + more;
}

void write_whole(const std::string& path, const std::string& bytes) {
  std::ofstream(path + ".part", std::ios::binary) << bytes;
  if (std::rename((path + ".part").c_str(), path.c_str()) != 0) misuse("cannot write " + path);
}

/// Returns false if the communicator was aborted meanwhile.
bool read_whole(const Gang& gang, const std::string& path, std::string& bytes) {
  while (::access(path.c_str(), F_OK) != 0) {
    if (gang.is_aborted) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ifstream file(path, std::ios::binary);
  bytes.assign(std::istreambuf_iterator<char>(file), {});
  return true;
}

// ---- on the stream

std::string from_device(const void* from, size_t bytes) {
  std::string out(bytes, '\0');
  copy(out.data(), from, bytes, false);
  return out;
}

void pass(const Job& job) {
  const Gang& gang = *job.gang;
  for (const Call& call : job.calls)
    if (call.what == What::send)
      write_whole(file_of(gang, job.number, gang.rank, ".to." + std::to_string(call.peer)),
                  from_device(call.from, bytes_of(call)));
  for (const Call& call : job.calls) {
    if (call.what != What::recv) continue;
    std::string came;
    std::string path = file_of(gang, job.number, call.peer, ".to." + std::to_string(gang.rank));
    if (!read_whole(gang, path, came)) return;
    if (came.size() != bytes_of(call)) misuse("a message of another length");
    copy(call.to, came.data(), came.size(), true);
  }
}

std::string combined(const Call& call, const std::vector<std::string>& all, size_t at) {
  flow::collective::Reducer how{dtype_of(call.type), op_of(call.op),
                                call.op == kAverage ? static_cast<int>(all.size()) : 1};
  std::vector<std::vector<float>> wide(all.size());
  std::vector<const void*> in;
  flow::DType small = how.dtype;
  bool is_small = flow::collective::is_small_float(small);
  for (size_t i = 0; i < all.size(); i++) {
    const char* piece = all[i].data() + at;
    in.push_back(piece);
    if (!is_small) continue;
    wide[i].resize(call.count);
    flow::collective::widen(small, piece, wide[i].data(), call.count);
    in[i] = wide[i].data();
  }
  std::string out(bytes_of(call), '\0');
  if (!is_small) {
    flow::collective::reduce(how, in.data(), static_cast<int>(in.size()), call.count, out.data());
    return out;
  }
  std::vector<float> sum(call.count);
  how.dtype = flow::DType::f32;
  flow::collective::reduce(how, in.data(), static_cast<int>(in.size()), call.count, sum.data());
  flow::collective::narrow(small, sum.data(), out.data(), call.count);
  return out;
}

void exchange(const Job& job) {
  const Gang& gang = *job.gang;
  const Call& call = job.calls[0];
  auto ranks = static_cast<size_t>(gang.ranks), rank = static_cast<size_t>(gang.rank);
  size_t bytes = bytes_of(call);
  size_t given = call.what == What::reduce_scatter ? bytes * ranks : bytes;
  std::string kind = std::to_string(static_cast<int>(call.what)) + " " +
                     std::to_string(call.count) + " " + std::to_string(call.type) + " " +
                     std::to_string(call.op) + " " + std::to_string(call.peer) + "\n";
  write_whole(file_of(gang, job.number, gang.rank), kind + from_device(call.from, given));
  std::vector<std::string> all(ranks);
  for (size_t i = 0; i < ranks; i++) {
    if (!read_whole(gang, file_of(gang, job.number, static_cast<int>(i)), all[i])) return;
    // Real NCCL would hang after such a mismatch.
    while (all[i].substr(0, kind.size()) != kind) {
      if (gang.is_aborted) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    all[i].erase(0, kind.size());
  }
  std::string out;
  if (call.what == What::all_reduce) out = combined(call, all, 0);
  if (call.what == What::reduce_scatter) out = combined(call, all, rank * bytes);
  if (call.what == What::broadcast) out = all[static_cast<size_t>(call.peer)];
  if (call.what == What::all_gather)
    for (const std::string& one : all) out += one;
  copy(call.to, out.data(), out.size(), true);
}

bool hangs(const Job& job) {
  const char* named = std::getenv("FLOW_FAKE_NCCL_HANG");
  std::istringstream words(named == nullptr ? "" : named);
  int rank = -1;
  uint64_t number = 0;
  words >> rank >> number;
  return rank == job.gang->rank && number == job.number;
}

void run(void* argument) {
  std::unique_ptr<Job> job(static_cast<Job*>(argument));
  while (hangs(*job) && !job->gang->is_aborted)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (job->gang->is_aborted) return;
  bool passes = job->calls[0].what == What::send || job->calls[0].what == What::recv;
  passes ? pass(*job) : exchange(*job);
}

void log_line(const Comm& comm, const std::string& text) {
  const char* path = std::getenv("FLOW_FAKE_NCCL_LOG");
  if (path == nullptr) return;
  std::string line = std::to_string(comm.gang->rank) + " " + text + "\n";
  int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (::write(file, line.data(), line.size()) < 0) misuse("cannot write its log");
  ::close(file);
}

void log_call(const Comm& comm, const Call& call) {
  log_line(comm, std::string(kNames[static_cast<int>(call.what)]) + " " +
                     std::to_string(call.count) + " " + std::to_string(call.type));
}

int queue(Comm* comm, std::vector<Call> calls, void* stream) {
  if (comm == nullptr || !comm->is_up) misuse("a call before the communicator was up");
  if (comm->is_finalized) misuse("a call after its end");
  for (const Call& call : calls) log_call(*comm, call);
  auto job = std::make_unique<Job>();
  job->gang = comm->gang;
  job->calls = std::move(calls);
  job->number = ++comm->queued;
  put(stream, run, job.release());
  return kSuccess;
}

bool is_message(const Call& call) { return call.what == What::send || call.what == What::recv; }

int call_nccl(Comm* comm, const Call& call, void* stream) {
  if (group_depth == 0) return queue(comm, {call}, stream);
  grouped.push_back(call);
  group_comm = comm;
  group_stream = stream;
  return kSuccess;
}

/// Messages pass together, before the collectives of the group.
int launch_group(std::vector<Call> calls) {
  std::vector<Call> messages;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(messages), is_message);
  if (messages.size() < calls.size())
    log_line(*group_comm, "group " + std::to_string(calls.size()) + " 0");
  if (!messages.empty()) queue(group_comm, messages, group_stream);
  for (const Call& call : calls)
    if (!is_message(call)) queue(group_comm, {call}, group_stream);
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  const char* root = std::getenv("TMPDIR");
  std::string folder = std::string(root != nullptr ? root : "/tmp") + "/nccl-XXXXXX";
  if (folder.size() >= sizeof id->bytes || ::mkdtemp(folder.data()) == nullptr) return kSystemError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, folder.data(), folder.size());
  return kSuccess;
}

int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0)
    misuse("a configuration that blocks, or is none");
  auto* made = new Comm;
  made->gang = std::make_shared<Gang>();
  made->gang->folder = id.bytes;
  made->gang->rank = rank;
  made->gang->ranks = ranks;
  write_whole(made->gang->folder + "/joined." + std::to_string(rank), "");
  *comm = made;
  return kInProgress;
}

int ncclCommGetAsyncError(Comm* comm, int* state) {
  const Gang& gang = *comm->gang;
  for (int rank = 0; rank < gang.ranks && !comm->is_up; rank++) {
    *state = kInProgress;
    std::string path = gang.folder + "/joined." + std::to_string(rank);
    if (::access(path.c_str(), F_OK) != 0) return kSuccess;
  }
  comm->is_up = true;
  *state = kSuccess;
  return kSuccess;
}

int ncclCommFinalize(Comm* comm) {
  comm->is_finalized = true;
  return kSuccess;
}

int ncclCommDestroy(Comm* comm) {
  if (!comm->is_finalized) misuse("a communicator that was destroyed before it was finalized");
  delete comm;
  return kSuccess;
}

int ncclCommAbort(Comm* comm) {
  comm->gang->is_aborted = true;
  delete comm;
  return kSuccess;
}

int ncclGroupStart() {
  group_depth++;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--group_depth > 0 || grouped.empty()) return kSuccess;
  std::vector<Call> calls;
  calls.swap(grouped);
  return launch_group(std::move(calls));
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm,
                  void* stream) {
  return call_nccl(comm, {What::all_reduce, from, to, count, type, op, 0}, stream);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, Comm* comm,
                      void* stream) {
  return call_nccl(comm, {What::reduce_scatter, from, to, count, type, op, 0}, stream);
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
  return call_nccl(comm, {What::all_gather, from, to, count, type, 0, 0}, stream);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm,
                  void* stream) {
  return call_nccl(comm, {What::broadcast, from, to, count, type, 0, root}, stream);
}
int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
  return call_nccl(comm, {What::send, from, nullptr, count, type, 0, peer}, stream);
}
int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
  return call_nccl(comm, {What::recv, nullptr, to, count, type, 0, peer}, stream);
}

const char* ncclGetErrorString(int) { return "unhandled system error"; }

}  // extern "C"
