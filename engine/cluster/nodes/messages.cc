#include "engine/cluster/nodes/messages.hpp"

#include "engine/core/gpus.hpp"
#include "engine/executor/wire.hpp"
#include "engine/worker/slot.hpp"

namespace flow::cluster {

namespace {

// The first byte of a piece.
constexpr char kLast = 0, kMore = 1;

}  // namespace

void put_order(const AttemptOrder& order, uint64_t commit, nodes::Order& out) {
  fill_start(order, "", *out.mutable_start());
  out.mutable_start()->set_commit(commit);
  out.set_timeout_ms(order.timeout_ms);
  out.set_cpus_milli(order.resources.cpus_milli);
}

bool get_order(nodes::Order& in, AttemptOrder& order) {
  bool ok = in.has_start() && in.timeout_ms() >= 0 && in.cpus_milli() >= 0 &&
            read_start(*in.mutable_start(), order);
  order.timeout_ms = in.timeout_ms();
  order.resources.cpus_milli = in.cpus_milli();
  return ok;
}

void put_report(Report report, nodes::Said& out) {
  out.set_pid(report.pid);
  out.set_cost(report.cost);
  fill_report(std::move(report), *out.mutable_report());
}

bool get_report(nodes::Said& in, Report& report) {
  if (!in.has_report() || !to_report(*in.mutable_report(), report)) return false;
  report.pid = in.pid();
  report.cost = in.cost();
  return true;
}

void put_host(const core::HostInfo& host, nodes::Join& out) {
  out.set_cpus_milli(host.cpus_milli);
  out.set_memory_bytes(host.memory_bytes);
  for (const Gpu& gpu : host.gpus) put_gpu(gpu, *out.add_gpus());
}

bool get_host(const nodes::Join& in, core::HostInfo& host) {
  host.cpus_milli = in.cpus_milli();
  host.memory_bytes = in.memory_bytes();
  host.gpus.clear();
  for (const wire::Gpu& gpu : in.gpus()) host.gpus.push_back(get_gpu(gpu));
  return host.cpus_milli >= 0 && host.memory_bytes >= 0 && core::are_sound(host.gpus);
}

std::vector<std::string> pieces_of(std::string_view message) {
  std::vector<std::string> pieces;
  do {
    std::string_view next = message.substr(0, kPieceBytes);
    message.remove_prefix(next.size());
    pieces.emplace_back(1, message.empty() ? kLast : kMore) += next;
  } while (!message.empty());
  return pieces;
}

Joiner::Outcome Joiner::add(std::string_view piece, std::string& message) {
  bool is_piece = !piece.empty() && (piece[0] == kLast || piece[0] == kMore) &&
                  begun_.size() + piece.size() <= kWholeBytesMax;
  if (!is_piece) return Outcome::broken;
  begun_ += piece.substr(1);
  if (piece[0] == kMore) return Outcome::more;
  message = std::exchange(begun_, {});
  return Outcome::whole;
}

}  // namespace flow::cluster
