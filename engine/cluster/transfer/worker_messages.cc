#include "engine/cluster/transfer/worker_messages.hpp"

#include "engine/cluster/transfer/blob_references.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/workers.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/worker/gpu_watch.hpp"
#include "engine/worker/slot.hpp"

namespace flow::cluster {

namespace {

// The first byte of a chunk.
constexpr char kLast = 0, kMore = 1;

constexpr size_t kNameBytesMax = 64;               // of a process or a spool
constexpr core::Time kTimeMax = int64_t{1} << 53;  // upper limit of a received time

void put_volume(const BlobVolume& moved, worker_protocol::BlobVolume& out) {
  out.set_blobs(moved.blobs);
  out.set_bytes(moved.bytes);
}

BlobVolume get_volume(const worker_protocol::BlobVolume& in) { return {in.blobs(), in.bytes()}; }

}  // namespace

void put_order(const AttemptOrder& order, uint64_t commit, worker_protocol::Order& out) {
  fill_start(order, "", *out.mutable_start());
  out.mutable_start()->set_args(without_origins(order.args));
  out.mutable_start()->set_commit(commit);
  out.set_timeout_ms(order.timeout_ms);
  out.set_cpus_milli(order.resources.cpus_milli);
  out.set_is_spread(order.is_spread);
}

bool get_order(worker_protocol::Order& in, AttemptOrder& order) {
  bool ok = in.has_start() && in.timeout_ms() >= 0 && in.cpus_milli() >= 0 &&
            read_start(*in.mutable_start(), order);
  order.timeout_ms = in.timeout_ms();
  order.resources.cpus_milli = in.cpus_milli();
  order.is_spread = in.is_spread();
  return ok;
}

void put_report(Report report, uint64_t number, worker_protocol::ReportEnvelope& out) {
  if (const auto* finished = report.as<TaskFinished>()) out.set_pid(finished->pid);
  out.set_number(number);
  if (is_final_report(report)) out.set_at_ms(report.at);
  fill_report(std::move(report), *out.mutable_report());
}

bool get_report(worker_protocol::ReportEnvelope& in, Report& report) {
  if (!in.has_report() || !to_report(*in.mutable_report(), report)) return false;
  if (auto* finished = report.as<TaskFinished>()) finished->pid = in.pid();
  if (is_final_report(report)) report.at = in.at_ms();
  return in.at_ms() >= 0 && in.at_ms() <= kTimeMax;
}

bool is_final_report(const Report& report) {
  return report.is<TaskFinished>() || report.is<TaskRequeued>();
}

void put_join_request(const JoinRequest& request, worker_protocol::Join& out) {
  out.set_cpus_milli(request.worker.cpus_milli);
  out.set_memory_bytes(request.worker.memory_bytes);
  for (const Gpu& gpu : request.worker.gpus) put_gpu(gpu, *out.add_gpus());
  for (const auto& [name, value] : request.worker.labels) {
    worker_protocol::Label& label = *out.add_labels();
    label.set_name(name);
    label.set_value(value);
  }
  for (const auto& [name, milli] : request.worker.custom_resources) {
    worker_protocol::ResourceQuantity& amount = *out.add_custom_resources();
    amount.set_name(name);
    amount.set_milli(milli);
  }
  out.set_now_ms(request.now);
  out.set_process(request.process);
  out.set_spool(request.spool);
  for (const RankOffer& offer : request.ranks) {
    worker_protocol::RankOffer& rank = *out.add_ranks();
    *rank.mutable_rank() = wire_name(offer.rank.attempt, offer.rank.rank);
    rank.set_has_ended(offer.has_ended);
  }
  out.set_blob_address(request.blob_address);
  out.mutable_machine()->set_id(request.machine.id);
  out.mutable_machine()->set_cpus(request.machine.cpus);
  out.mutable_machine()->set_memory_bytes(request.machine.memory_bytes);
}

bool get_join_request(const worker_protocol::Join& in, JoinRequest& request) {
  core::WorkerInfo& worker = request.worker;
  worker.cpus_milli = in.cpus_milli();
  worker.memory_bytes = in.memory_bytes();
  for (const wire::Gpu& gpu : in.gpus()) worker.gpus.push_back(get_gpu(gpu));
  for (const worker_protocol::Label& label : in.labels())
    worker.labels.emplace_back(label.name(), label.value());
  for (const worker_protocol::ResourceQuantity& amount : in.custom_resources())
    worker.custom_resources.emplace_back(amount.name(), amount.milli());
  request.now = in.now_ms();
  request.process = in.process();
  request.spool = in.spool();
  for (const worker_protocol::RankOffer& offer : in.ranks())
    request.ranks.push_back({{attempt_id(offer.rank()), offer.rank().rank()}, offer.has_ended()});
  request.blob_address = in.blob_address();
  request.machine = {in.machine().id(), in.machine().cpus(), in.machine().memory_bytes()};
  bool is_named = !request.process.empty() && request.process.size() <= kNameBytesMax &&
                  !request.spool.empty() && request.spool.size() <= kNameBytesMax;
  return is_named && request.blob_address.size() <= kAddressBytesMax &&
         request.machine.id.size() <= kNameBytesMax && worker.cpus_milli >= 0 &&
         worker.memory_bytes >= 0 && request.now >= 0 && request.now <= kTimeMax &&
         core::are_sound(worker.gpus) && core::are_sound(worker.labels) &&
         are_sound(worker.custom_resources);
}

void put_gpu_sample(const GpuSample& sample, wire::GpuSample& to) {
  to.set_index(sample.index);
  to.set_uuid(sample.uuid);
  if (sample.utilization_percent) to.set_utilization_percent(*sample.utilization_percent);
  if (sample.memory_used_bytes) to.set_memory_used(*sample.memory_used_bytes);
  if (sample.memory_bytes) to.set_memory(*sample.memory_bytes);
  if (sample.temperature_celsius) to.set_temperature_celsius(*sample.temperature_celsius);
  if (sample.power_milliwatts) to.set_power_milliwatts(*sample.power_milliwatts);
  if (sample.energy_millijoules) to.set_energy_millijoules(*sample.energy_millijoules);
}

bool get_gpu_sample(const wire::GpuSample& from, GpuSample& sample) {
  constexpr size_t kUuidBytesMax = 96;
  constexpr uint32_t kPercentMax = 100;
  sample = get_sample(from);
  return sample.index < kSampledGpusMax && !sample.uuid.empty() &&
         sample.uuid.size() <= kUuidBytesMax &&
         sample.utilization_percent.value_or(0) <= kPercentMax &&
         sample.memory_used_bytes.value_or(0) >= 0 && sample.memory_bytes.value_or(0) >= 0;
}

void put_inventory_delta(const BlobInventoryDelta& delta,
                         worker_protocol::BlobInventoryDelta& out) {
  for (const BlobInfo& blob : delta.added) {
    worker_protocol::LargeBlob& large = *out.add_added();
    large.set_digest(std::string(blob.digest.view()));
    large.set_size(*blob.size);
  }
  for (const Digest& digest : delta.removed) out.add_removed(std::string(digest.view()));
  put_volume(delta.traffic.from_head, *out.mutable_from_head());
  put_volume(delta.traffic.from_workers, *out.mutable_from_workers());
  put_volume(delta.traffic.to_workers, *out.mutable_to_workers());
}

bool get_inventory_delta(const worker_protocol::BlobInventoryDelta& in, BlobInventoryDelta& delta) {
  auto count = [](const auto& list) { return static_cast<size_t>(list.size()); };
  bool is_sound =
      count(in.added()) <= kInventoryDeltaMax && count(in.removed()) <= kInventoryDeltaMax;
  for (const worker_protocol::LargeBlob& large : in.added()) {
    BlobInfo& blob = delta.added.emplace_back();
    blob.size = large.size();
    is_sound = is_sound && large.size() <= kBlobBytesMax &&
               Digest::from_bytes(large.digest(), blob.digest);
  }
  for (const std::string& digest : in.removed())
    is_sound = is_sound && Digest::from_bytes(digest, delta.removed.emplace_back());
  delta.traffic = {get_volume(in.from_head()), get_volume(in.from_workers()),
                   get_volume(in.to_workers())};
  return is_sound;
}

std::vector<std::string> split_message(std::string_view message) {
  std::vector<std::string> chunks;
  do {
    std::string_view next = message.substr(0, kMessageChunkBytes);
    message.remove_prefix(next.size());
    chunks.emplace_back(1, message.empty() ? kLast : kMore) += next;
  } while (!message.empty());
  return chunks;
}

MessageAssembler::Outcome MessageAssembler::add(std::string_view chunk, std::string& message) {
  bool is_chunk = !chunk.empty() && (chunk[0] == kLast || chunk[0] == kMore) &&
                  partial_.size() + chunk.size() <= kSplitMessageBytesMax;
  if (!is_chunk) return Outcome::broken;
  partial_ += chunk.substr(1);
  if (chunk[0] == kMore) return Outcome::more;
  message = std::exchange(partial_, {});
  return Outcome::whole;
}

}  // namespace flow::cluster
