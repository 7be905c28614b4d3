// Orders and reports as messages between a head and a worker, and messages as pieces that a session
// takes.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/cluster/transfer/transfer_channel.hpp"
#include "engine/protocol/worker_protocol.pb.h"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

/// All but the bundle's bytes and the environment, which go ahead of it.
void put_order(const AttemptOrder& order, uint64_t commit, worker_protocol::Order& out);
/// False where it is no order.
bool get_order(worker_protocol::Order& in, AttemptOrder& order);

void put_report(Report report, uint64_t number, worker_protocol::ReportEnvelope& out);
/// False where it is no report. Content that is not what its digest says is left out.
bool get_report(worker_protocol::ReportEnvelope& in, Report& report);

/// Nothing is said of an attempt after that.
bool is_final_report(const Report& report);

/// What a worker says of itself first.
struct JoinRequest {
  core::WorkerInfo worker;  // its name is the session's to know
  std::string address;      // where it came from, for people; the session's too
  std::string process;      // this life of the worker
  std::string spool;        // whose numbers its reports have
  std::vector<core::AttemptId> attempts;
  std::string blob_address;  // where other workers ask it for content; "" nowhere
  core::Time now = 0;        // by its clock, which may not be ours
  Hardware machine{};
};
void put_join_request(const JoinRequest& request, worker_protocol::Join& out);
/// False where that can't be.
bool get_join_request(const worker_protocol::Join& in, JoinRequest& request);

/// Pieces of content and their bytes.
struct BlobVolume {
  uint64_t blobs = 0, bytes = 0;
  bool operator==(const BlobVolume&) const = default;
};
/// What a worker fetched, and what it gave to others, since it began.
struct Traffic {
  BlobVolume from_head, from_workers, to_workers;
  bool operator==(const Traffic&) const = default;
};
constexpr size_t kFaultBytesMax = 1'024;      // of what a GPU did when it failed
constexpr size_t kInventoryDeltaMax = 4'096;  // contents in one message
/// What changed of the large content that a worker has. Sizes are known.
struct BlobInventoryDelta {
  std::vector<BlobInfo> added;
  std::vector<Digest> removed;
  Traffic traffic;
};
void put_inventory_delta(const BlobInventoryDelta& delta, worker_protocol::BlobInventoryDelta& out);
/// False where that can't be.
bool get_inventory_delta(const worker_protocol::BlobInventoryDelta& in, BlobInventoryDelta& delta);

constexpr size_t kMessageChunkBytes = size_t{1} << 20;
constexpr size_t kSplitMessageBytesMax = size_t{512} << 20;

/// A message as pieces that are sent in this order: a session's frames are bounded, and between
/// pieces of a long one its heartbeats go out.
std::vector<std::string> split_message(std::string_view message);

/// Puts them together again.
class MessageAssembler {
 public:
  enum class Outcome : uint8_t { more, whole, broken };
  /// `whole`: `message` is the whole one. `broken`: nothing comes after that.
  Outcome add(std::string_view chunk, std::string& message);

 private:
  std::string partial_;
};

}  // namespace flow::cluster
