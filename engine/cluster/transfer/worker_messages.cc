#include "engine/cluster/transfer/worker_messages.hpp"

#include "engine/cluster/transfer/needed.hpp"
#include "engine/core/gpu_accounting.hpp"
#include "engine/core/hosts.hpp"
#include "engine/protocol/frames.hpp"
#include "engine/worker/slot.hpp"

namespace flow::cluster {

namespace {

// The first byte of a piece.
constexpr char kLast = 0, kMore = 1;

constexpr size_t kNameBytesMax = 64;               // of a process or a spool
constexpr core::Time kTimeMax = int64_t{1} << 53;  // what a clock may show

void put_moved(const Moved& moved, nodes::Moved& out) {
  out.set_pieces(moved.pieces);
  out.set_bytes(moved.bytes);
}

Moved get_moved(const nodes::Moved& in) { return {in.pieces(), in.bytes()}; }

}  // namespace

void put_order(const AttemptOrder& order, uint64_t commit, nodes::Order& out) {
  fill_start(order, "", *out.mutable_start());
  out.mutable_start()->set_args(without_origins(order.args));
  out.mutable_start()->set_commit(commit);
  out.set_timeout_ms(order.timeout_ms);
  out.set_cpus_milli(order.resources.cpus_milli);
  out.set_is_spread(order.is_spread);
}

bool get_order(nodes::Order& in, AttemptOrder& order) {
  bool ok = in.has_start() && in.timeout_ms() >= 0 && in.cpus_milli() >= 0 &&
            read_start(*in.mutable_start(), order);
  order.timeout_ms = in.timeout_ms();
  order.resources.cpus_milli = in.cpus_milli();
  order.is_spread = in.is_spread();
  return ok;
}

void put_report(Report report, uint64_t number, nodes::Said& out) {
  out.set_pid(report.pid);
  out.set_number(number);
  if (tells_end(report)) out.set_at_ms(report.at);
  fill_report(std::move(report), *out.mutable_report());
}

bool get_report(nodes::Said& in, Report& report) {
  if (!in.has_report() || !to_report(*in.mutable_report(), report)) return false;
  report.pid = in.pid();
  if (tells_end(report)) report.at = in.at_ms();
  return in.at_ms() >= 0 && in.at_ms() <= kTimeMax;
}

bool tells_end(const Report& report) {
  return report.kind == Report::Kind::finished || report.kind == Report::Kind::returned;
}

void put_joining(const Joining& joining, nodes::Join& out) {
  out.set_cpus_milli(joining.host.cpus_milli);
  out.set_memory_bytes(joining.host.memory_bytes);
  for (const Gpu& gpu : joining.host.gpus) put_gpu(gpu, *out.add_gpus());
  for (const auto& [name, value] : joining.host.labels) {
    nodes::Label& label = *out.add_labels();
    label.set_name(name);
    label.set_value(value);
  }
  for (const auto& [name, milli] : joining.host.named) {
    nodes::Amount& amount = *out.add_named();
    amount.set_name(name);
    amount.set_milli(milli);
  }
  out.set_now_ms(joining.now);
  out.set_process(joining.process);
  out.set_spool(joining.spool);
  for (const core::AttemptId& id : joining.attempts) *out.add_attempts() = wire_name(id);
  out.set_serves_at(joining.serves_at);
  out.mutable_machine()->set_id(joining.machine.id);
  out.mutable_machine()->set_cpus(joining.machine.cpus);
  out.mutable_machine()->set_memory_bytes(joining.machine.memory_bytes);
}

bool get_joining(const nodes::Join& in, Joining& joining) {
  core::HostInfo& host = joining.host;
  host.cpus_milli = in.cpus_milli();
  host.memory_bytes = in.memory_bytes();
  for (const wire::Gpu& gpu : in.gpus()) host.gpus.push_back(get_gpu(gpu));
  for (const nodes::Label& label : in.labels())
    host.labels.emplace_back(label.name(), label.value());
  for (const nodes::Amount& amount : in.named())
    host.named.emplace_back(amount.name(), amount.milli());
  joining.now = in.now_ms();
  joining.process = in.process();
  joining.spool = in.spool();
  for (const wire::AttemptName& name : in.attempts()) joining.attempts.push_back(attempt_id(name));
  joining.serves_at = in.serves_at();
  joining.machine = {in.machine().id(), in.machine().cpus(), in.machine().memory_bytes()};
  bool is_named = !joining.process.empty() && joining.process.size() <= kNameBytesMax &&
                  !joining.spool.empty() && joining.spool.size() <= kNameBytesMax;
  return is_named && joining.serves_at.size() <= kAddressBytesMax &&
         joining.machine.id.size() <= kNameBytesMax && host.cpus_milli >= 0 &&
         host.memory_bytes >= 0 && joining.now >= 0 && joining.now <= kTimeMax &&
         core::are_sound(host.gpus) && core::are_sound(host.labels) && are_sound(host.named);
}

void put_news(const ContentNews& news, nodes::ContentNews& out) {
  for (const BlobInfo& content : news.here) {
    nodes::Large& large = *out.add_here();
    large.set_digest(std::string(content.digest.view()));
    large.set_size(*content.size);
  }
  for (const Digest& digest : news.gone) out.add_gone(std::string(digest.view()));
  put_moved(news.traffic.from_head, *out.mutable_from_head());
  put_moved(news.traffic.from_workers, *out.mutable_from_workers());
  put_moved(news.traffic.to_workers, *out.mutable_to_workers());
}

bool get_news(const nodes::ContentNews& in, ContentNews& news) {
  auto count = [](const auto& list) { return static_cast<size_t>(list.size()); };
  bool is_sound = count(in.here()) <= kNewsMax && count(in.gone()) <= kNewsMax;
  for (const nodes::Large& large : in.here()) {
    BlobInfo& content = news.here.emplace_back();
    content.size = large.size();
    is_sound = is_sound && large.size() <= kContentBytesMax &&
               Digest::from_bytes(large.digest(), content.digest);
  }
  for (const std::string& digest : in.gone())
    is_sound = is_sound && Digest::from_bytes(digest, news.gone.emplace_back());
  news.traffic = {get_moved(in.from_head()), get_moved(in.from_workers()),
                  get_moved(in.to_workers())};
  return is_sound;
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
