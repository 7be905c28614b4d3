// Orders and reports as messages between a head and a worker, and messages as pieces that a session
// takes.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/hardware.hpp"
#include "engine/cluster/transfer/line.hpp"
#include "engine/protocol/worker_protocol.pb.h"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

/// All but the bundle's bytes and the environment, which go ahead of it.
void put_order(const AttemptOrder& order, uint64_t commit, nodes::Order& out);
/// False where it is no order.
bool get_order(nodes::Order& in, AttemptOrder& order);

void put_report(Report report, uint64_t number, nodes::Said& out);
/// False where it is no report. Content that is not what its digest says is left out.
bool get_report(nodes::Said& in, Report& report);

/// Nothing is said of an attempt after that.
bool tells_end(const Report& report);

/// What a worker says of itself first.
struct Joining {
  core::HostInfo host;  // its name is the session's to know
  std::string address;  // where it came from, for people; the session's too
  std::string process;  // this life of the worker
  std::string spool;    // whose numbers its reports have
  std::vector<core::AttemptId> attempts;
  std::string serves_at;  // where other workers ask it for content; "" nowhere
  core::Time now = 0;     // by its clock, which may not be ours
  Hardware machine{};
};
void put_joining(const Joining& joining, nodes::Join& out);
/// False where that can't be.
bool get_joining(const nodes::Join& in, Joining& joining);

/// Pieces of content and their bytes.
struct Moved {
  uint64_t pieces = 0, bytes = 0;
  bool operator==(const Moved&) const = default;
};
/// What a worker fetched, and what it gave to others, since it began.
struct Traffic {
  Moved from_head, from_workers, to_workers;
  bool operator==(const Traffic&) const = default;
};
constexpr size_t kFaultBytesMax = 1'024;  // of what a GPU did when it failed
constexpr size_t kNewsMax = 4'096;        // contents in one message
/// What changed of the large content that a worker has. Sizes are known.
struct ContentNews {
  std::vector<BlobInfo> here;
  std::vector<Digest> gone;
  Traffic traffic;
};
void put_news(const ContentNews& news, nodes::ContentNews& out);
/// False where that can't be.
bool get_news(const nodes::ContentNews& in, ContentNews& news);

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kWholeBytesMax = size_t{512} << 20;

/// A message as pieces that are sent in this order: a session's frames are bounded, and between
/// pieces of a long one its heartbeats go out.
std::vector<std::string> pieces_of(std::string_view message);

/// Puts them together again.
class Joiner {
 public:
  enum class Outcome : uint8_t { more, whole, broken };
  /// `whole`: `message` is the whole one. `broken`: nothing comes after that.
  Outcome add(std::string_view piece, std::string& message);

 private:
  std::string begun_;
};

}  // namespace flow::cluster
