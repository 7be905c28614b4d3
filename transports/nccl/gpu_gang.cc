// A gang whose collectives run on GPUs and CPUs: how the ranks agree on NCCL, and the communicator
// that has both.
//
// Each call on GPUs is announced on the CPU communicator too, without data: mismatched calls,
// missing ranks and dead ranks are detected there, as they are without GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "transports/nccl/nccl.hpp"

namespace flow {
namespace {

constexpr size_t kTextBytes = 1024;  // text that a rank sends to all others

/// The text of each rank, in the order of ranks.
Result<std::vector<std::string>> exchange_texts(Communicator& ranks, const std::string& own) {
  auto count = static_cast<size_t>(ranks.ranks());
  std::string mine = own.substr(0, kTextBytes - 1), all(kTextBytes * count, '\0');
  mine.resize(kTextBytes);
  FLOW_TRY(
      ranks.run(all_gather(mine.data(), all.data(), static_cast<int64_t>(kTextBytes), DType::u8)));
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; i++) texts.emplace_back(all.c_str() + i * kTextBytes);
  return texts;
}

constexpr char kSeparator = '\n';

std::string encode_rank_gpu(const RankGpu& gpu) {
  std::string problem = gpu.problem;
  std::replace(problem.begin(), problem.end(), kSeparator, ' ');
  return gpu.uuid + kSeparator + gpu.nccl + kSeparator + problem;
}

RankGpu parse_rank_gpu(const std::string& text) {
  RankGpu gpu;
  size_t first = text.find(kSeparator), second = text.find(kSeparator, first + 1);
  if (first == std::string::npos || second == std::string::npos)
    return {"", "", "it sent unreadable data"};
  gpu.uuid = text.substr(0, first);
  gpu.nccl = text.substr(first + 1, second - first - 1);
  gpu.problem = text.substr(second + 1);
  return gpu;
}

/// "NCCL 2.28" of "NCCL 2.28.9": the part that must be equal on all ranks.
std::string line_of(const std::string& version) { return version.substr(0, version.rfind('.')); }

/// An event behind the calls of one launch.
class StreamMark {
 public:
  StreamMark(std::shared_ptr<GpuStream> stream, void* mark)
      : stream_(std::move(stream)), mark_(mark) {}
  ~StreamMark() { stream_->forget(mark_); }
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;
  /// Later kernels of this thread run after the launch.
  Status lead() { return stream_->lead(mark_); }

 private:
  const std::shared_ptr<GpuStream> stream_;
  void* const mark_;
};

/// A call on GPUs, as the thread that queues kernels sees it.
class GpuWork final : public CollectiveWork {
 public:
  GpuWork(std::shared_ptr<CollectiveWork> work, std::shared_ptr<StreamMark> mark)
      : work_(std::move(work)), mark_(std::move(mark)) {}
  bool is_done() const override { return work_->is_done(); }
  Status wait() override {
    if (work_->is_done()) FLOW_TRY(work_->wait());
    return mark_->lead();
  }

 private:
  const std::shared_ptr<CollectiveWork> work_;
  const std::shared_ptr<StreamMark> mark_;
};

class EndedWork final : public CollectiveWork {
 public:
  explicit EndedWork(Status status) : status_(std::move(status)) {}
  bool is_done() const override { return true; }
  Status wait() override { return status_; }

 private:
  const Status status_;
};

class GpuGangCommunicator final : public Communicator {
 public:
  GpuGangCommunicator(std::shared_ptr<Communicator> cpus, std::unique_ptr<Communicator> gpus,
                      std::shared_ptr<GpuStream> stream)
      : cpus_(std::move(cpus)), stream_(std::move(stream)), gpus_(std::move(gpus)) {}

  int rank() const override { return cpus_->rank(); }
  int ranks() const override { return cpus_->ranks(); }
  bool takes_device() const override { return true; }
  Status run(const CollectiveCall& call) override;
  std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) override;
  std::vector<std::shared_ptr<CollectiveWork>> start_all(
      const std::vector<CollectiveCall>& calls) override;
  Status state() const override {
    FLOW_TRY(gpus_->state());
    return cpus_->state();
  }
  void abort(const std::string& reason) override {
    cpus_->abort(reason);
    gpus_->abort(reason);
  }
  std::optional<RankProgress> rank_progress() const override { return cpus_->rank_progress(); }
  std::string description() const override {
    return cpus_->description() + "; their GPUs: " + gpus_->description();
  }

 private:
  Status check_call(const CollectiveCall& call) const;
  std::shared_ptr<CollectiveWork> abort_both(const Error& cause);

  const std::shared_ptr<Communicator> cpus_;
  const std::shared_ptr<GpuStream> stream_;
  const std::unique_ptr<Communicator> gpus_;  // destroyed first
  std::mutex mutex_;                          // both communicators get the calls in one order
  std::shared_ptr<CollectiveWork> newest_;    // on the GPU
};

/// A stream runs its calls in order: if two ranks both sent first, neither would return.
Status GpuGangCommunicator::check_call(const CollectiveCall& call) const {
  FLOW_TRY(check(call, rank(), ranks()));
  if (call.what != Collective::send && call.what != Collective::recv) return gpus_->state();
  return user_error(collective_text(call) + ": messages are of the host's memory: move it first");
}

Status GpuGangCommunicator::run(const CollectiveCall& call) {
  if (call.is_device) return start(call)->wait();
  // A rank does not leave before its GPU has finished calls that other ranks wait for.
  std::shared_ptr<CollectiveWork> newest;
  if (call.what == Collective::leave) {
    std::lock_guard lock(mutex_);
    newest = newest_;
  }
  if (newest) FLOW_TRY(newest->wait());
  return cpus_->run(call);
}

std::shared_ptr<CollectiveWork> GpuGangCommunicator::start(const CollectiveCall& call) {
  if (!call.is_device) return cpus_->start(call);
  return start_all({call}).front();
}

/// The calls on GPUs are one launch after all kernels so far, and one event follows it.
std::vector<std::shared_ptr<CollectiveWork>> GpuGangCommunicator::start_all(
    const std::vector<CollectiveCall>& calls) {
  std::vector<std::shared_ptr<CollectiveWork>> works;
  std::vector<CollectiveCall> launched;
  std::vector<size_t> places;  // of their works
  std::lock_guard lock(mutex_);
  for (const CollectiveCall& call : calls) {
    Status checked = call.is_device ? check_call(call) : Status();
    if (!checked.ok()) {
      works.push_back(std::make_shared<EndedWork>(checked.error()));
      continue;
    }
    CollectiveCall announced = call;
    announced.moves = !call.is_device && call.moves;
    works.push_back(cpus_->start(announced));
    if (!call.is_device || call.count == 0) continue;
    places.push_back(works.size() - 1);
    launched.push_back(call);
  }
  if (launched.empty()) return works;
  Status failed = stream_->follow();
  std::vector<std::shared_ptr<CollectiveWork>> on_gpus;
  if (failed.ok()) {
    on_gpus = gpus_->start_all(launched);
    newest_ = on_gpus.back();
    auto mark = stream_->mark();
    if (mark.ok()) {
      auto shared = std::make_shared<StreamMark>(stream_, *mark);
      for (size_t i = 0; i < places.size(); i++)
        works[places[i]] = std::make_shared<GpuWork>(on_gpus[i], shared);
      return works;
    }
    failed = mark.error();
  }
  auto ended = abort_both(failed.error());
  for (size_t place : places) works[place] = ended;
  return works;
}

/// The other ranks expect a call that this rank cannot make.
std::shared_ptr<CollectiveWork> GpuGangCommunicator::abort_both(const Error& cause) {
  abort(cause.message);
  return std::make_shared<EndedWork>(cause);
}

/// A rank's NCCL state after it joined, or why it has none.
struct NcclSetup {
  std::shared_ptr<GpuStream> stream;
  std::unique_ptr<Communicator> gpus;
  std::string problem;
};

/// The addresses of all ranks; rank 0's has the gang's NCCL id and is sent to the ranks only.
Status join(NcclOptions options, NcclSetup& out) {
  std::unique_ptr<Rendezvous> rendezvous;
  if (out.problem.empty()) {
    options.stream = out.stream;
    auto made = make_nccl_rendezvous(options);
    if (made.ok())
      rendezvous = std::move(*made);
    else
      out.problem = made.error().message;
  }
  auto addresses =
      exchange_texts(*options.cpu_communicator, rendezvous ? rendezvous->address() : "");
  FLOW_TRY(addresses);
  bool all_can = std::none_of(addresses->begin(), addresses->end(),
                              [](const std::string& address) { return address.empty(); });
  if (!all_can) return {};
  auto joined = rendezvous->join(*addresses);
  if (joined.ok())
    out.gpus = std::move(*joined);
  else
    out.problem = joined.error().message;
  return {};
}

}  // namespace

std::string nccl_unavailable_reason(const std::vector<RankGpu>& ranks) {
  std::map<std::string, size_t> rank_by_uuid;
  for (size_t rank = 0; rank < ranks.size(); rank++) {
    const RankGpu& gpu = ranks[rank];
    if (!gpu.problem.empty()) return fmt::format("rank {}: {}", rank, gpu.problem);
    if (gpu.uuid.starts_with("MIG-"))
      return fmt::format("rank {} has a part of a GPU in MIG mode, {}", rank, gpu.uuid);
    auto [same_gpu, is_new] = rank_by_uuid.emplace(gpu.uuid, rank);
    if (!is_new) return fmt::format("ranks {} and {} share {}", same_gpu->second, rank, gpu.uuid);
    if (line_of(gpu.nccl) != line_of(ranks[0].nccl))
      return fmt::format("rank 0 has {} and rank {} has {}", ranks[0].nccl, rank, gpu.nccl);
  }
  return "";
}

Result<GpuGang> join_gpus(const NcclOptions& options, const RankGpu& own,
                          const std::function<Result<std::shared_ptr<GpuStream>>()>& make_stream) {
  auto texts = exchange_texts(*options.cpu_communicator, encode_rank_gpu(own));
  FLOW_TRY(texts);
  std::vector<RankGpu> gpus;
  for (const std::string& text : *texts) gpus.push_back(parse_rank_gpu(text));
  if (std::string why = nccl_unavailable_reason(gpus); !why.empty())
    return GpuGang{options.cpu_communicator, host_route_text(why)};

  NcclSetup setup;
  auto stream = make_stream();
  if (stream.ok())
    setup.stream = *stream;
  else
    setup.problem = stream.error().message;
  FLOW_TRY(join(options, setup));
  // All or none: if one rank did not join, the others abort.
  auto outcomes = exchange_texts(*options.cpu_communicator, setup.problem);
  FLOW_TRY(outcomes);
  for (size_t rank = 0; rank < outcomes->size(); rank++)
    if (const std::string& why = (*outcomes)[rank]; !why.empty()) {
      if (setup.gpus) setup.gpus->abort("another rank has not joined");
      return GpuGang{options.cpu_communicator,
                     host_route_text(fmt::format("rank {}: {}", rank, why))};
    }
  GpuGang gang;
  gang.route = "collectives between GPUs go by " + own.nccl;
  gang.communicator = std::make_shared<GpuGangCommunicator>(options.cpu_communicator,
                                                            std::move(setup.gpus), setup.stream);
  return gang;
}

}  // namespace flow
