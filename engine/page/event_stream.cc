#include "engine/page/event_stream.hpp"

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

#include "engine/page/page_json.hpp"

namespace flow {

namespace {

uint64_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }

const char* json_bool(bool value) { return value ? "true" : "false"; }

}  // namespace

void EventStreams::add(HttpReply reply, const std::string& run, const std::string& fields) {
  std::erase_if(streams_, [](const Stream& stream) { return stream.reply.is_abandoned(); });
  if (streams_.size() >= kStreamsMax) {
    reply.send(busy_response(503, fmt::format("{} pages are open: close one", kStreamsMax)));
    return;
  }
  reply.begin({200, "text/event-stream", fields});
  auto is_stalled = std::make_shared<std::atomic<bool>>(false);
  reply.watch([is_stalled] { *is_stalled = false; }, [] {});
  reply.write("retry: 1000\n\n");
  Stream& stream = streams_.emplace_back();
  stream.reply = std::move(reply);
  stream.run = run;
  stream.is_stalled = std::move(is_stalled);
  count_ = streams_.size();
}

void EventStreams::send(Stream& stream, const std::string& event, const std::string& data) {
  // The browser may become ready to read before write() returns.
  *stream.is_stalled = true;
  if (stream.reply.write(fmt::format("event: {}\ndata: {}\n\n", event, data)))
    *stream.is_stalled = false;
}

void EventStreams::send_changes(const StateFollower& state, bool has_writer) {
  std::erase_if(streams_, [](const Stream& stream) { return stream.reply.is_abandoned(); });
  count_ = streams_.size();
  if (streams_.empty()) return shown_.clear();
  Rows rows;
  for (RunInfo& run : state.list()) {
    Row& row = rows[run.id];
    row.is_active = is_active_status(run.status);
    row.json = page_run_row(std::move(run));
    row.hash = hash_of(row.json);
  }
  update_shown(state, rows);
  for (Stream& stream : streams_) {
    if (*stream.is_stalled) continue;
    send_rows(stream, rows, has_writer);
    send_shown(stream);
  }
}

void EventStreams::update_shown(const StateFollower& state, const Rows& rows) {
  for (auto& [id, shown] : shown_) shown.is_wanted = false;
  for (const Stream& stream : streams_)
    if (rows.contains(stream.run)) shown_[stream.run].is_wanted = true;
  std::erase_if(shown_, [](const auto& entry) { return !entry.second.is_wanted; });
  for (auto& [id, shown] : shown_) {
    const Row& row = rows.at(id);
    if (shown.sequence != 0 && shown.row.hash == row.hash && !row.is_active) continue;
    shown.sequence = tables_.read(state, id).sequence();
    shown.row = row;
  }
}

void EventStreams::send_rows(Stream& stream, const Rows& rows, bool has_writer) {
  std::string changed, removed;
  size_t count = 0;
  for (const auto& [id, row] : rows) {
    auto known = stream.rows.find(id);
    if (known != stream.rows.end() && known->second == row.hash) continue;
    if (++count <= kRowsMax) changed += (changed.empty() ? "" : ",") + row.json;
  }
  for (const auto& [id, hash] : stream.rows)
    if (!rows.contains(id)) removed += (removed.empty() ? "" : ",") + text_to_json(id);
  bool is_same = count == 0 && removed.empty() && stream.had_writer == has_writer;
  if (is_same && !stream.is_new) return;
  if (stream.is_new || count > kRowsMax) {
    send(stream, "reload", fmt::format(R"({{"writer":{}}})", json_bool(has_writer)));
  } else {
    send(stream, "runs",
         fmt::format(R"({{"writer":{},"changed":[{}],"removed":[{}]}})", json_bool(has_writer),
                     changed, removed));
  }
  stream.had_writer = has_writer;
  stream.rows.clear();
  for (const auto& [id, row] : rows) stream.rows[id] = row.hash;
}

void EventStreams::send_shown(Stream& stream) {
  auto shown = shown_.find(stream.run);
  if (shown != shown_.end() && !stream.is_new && stream.shown != shown->second.sequence)
    send(stream, "run", shown->second.row.json);
  if (shown != shown_.end()) stream.shown = shown->second.sequence;
  stream.is_new = false;
}

}  // namespace flow
