// Converts orders and reports to messages between head and worker, and splits messages into chunks
// of a session.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/cluster/transfer/transfer_channel.hpp"
#include "engine/protocol/worker_protocol.pb.h"
#include "engine/worker/gpu_samples.hpp"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

/// Encodes an order without the bundle's bytes and the environment, which are sent before it.
void put_order(const AttemptOrder& order, uint64_t commit, worker_protocol::Order& out);
/// Returns false if the message is not a valid order.
bool get_order(worker_protocol::Order& in, AttemptOrder& order);

void put_report(Report report, uint64_t number, worker_protocol::ReportEnvelope& out);
/// Returns false if the message is not a valid report. Blobs that do not match their digest are
/// left out.
bool get_report(worker_protocol::ReportEnvelope& in, Report& report);

/// Whether the report ends its attempt.
bool is_final_report(const Report& report);

/// The first message of a worker: its description.
struct JoinRequest {
  core::WorkerInfo worker;  // its name is taken from the session
  std::string address;      // remote address for messages; from the session too
  std::string process;      // process instance of the worker
  std::string spool;        // number sequence of its reports
  std::vector<RankOffer> ranks;
  std::string blob_address;  // address for blob requests of other workers; "": none
  core::Time now = 0;        // by the worker's clock
  Hardware machine{};
};
void put_join_request(const JoinRequest& request, worker_protocol::Join& out);
/// Returns false if the message is invalid.
bool get_join_request(const worker_protocol::Join& in, JoinRequest& request);

/// Number of blobs and their bytes.
struct BlobVolume {
  uint64_t blobs = 0, bytes = 0;
  bool operator==(const BlobVolume&) const = default;
};
/// Blobs that a worker downloaded and uploaded since it started.
struct Traffic {
  BlobVolume from_head, from_workers, to_workers;
  bool operator==(const Traffic&) const = default;
};
void put_gpu_sample(const GpuSample& sample, wire::GpuSample& to);
/// Returns false for what no GPU measures.
bool get_gpu_sample(const wire::GpuSample& from, GpuSample& sample);

constexpr size_t kFaultBytesMax = 1'024;      // of the description of a GPU failure
constexpr size_t kInventoryDeltaMax = 4'096;  // blobs per message
/// Changes of a worker's large blobs, with their sizes.
struct BlobInventoryDelta {
  std::vector<BlobInfo> added;
  std::vector<Digest> removed;
  Traffic traffic;
};
void put_inventory_delta(const BlobInventoryDelta& delta, worker_protocol::BlobInventoryDelta& out);
/// Returns false if the message is invalid.
bool get_inventory_delta(const worker_protocol::BlobInventoryDelta& in, BlobInventoryDelta& delta);

constexpr size_t kMessageChunkBytes = size_t{1} << 20;
constexpr size_t kSplitMessageBytesMax = size_t{512} << 20;

/// Splits a message into chunks, to be sent in order: frames of a session are bounded, and
/// heartbeats are sent between the chunks of a long message.
std::vector<std::string> split_message(std::string_view message);

/// Reassembles chunked messages.
class MessageAssembler {
 public:
  enum class Outcome : uint8_t { more, whole, broken };
  /// `whole`: `message` is complete. `broken`: the stream is invalid; add no more chunks.
  Outcome add(std::string_view chunk, std::string& message);

 private:
  std::string partial_;
};

}  // namespace flow::cluster
