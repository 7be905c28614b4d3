// Server-sent events: tells each open page which runs have changed. A page then asks for what it
// shows.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/page/task_table.hpp"
#include "engine/serve/http/http_server.hpp"
#include "flow/flow.hpp"

namespace flow {

/// Only the state's thread uses it, but for is_watched().
class EventStreams {
 public:
  /// `tables` get what is read of the shown runs.
  explicit EventStreams(TaskTables& tables) : tables_(tables) {}

  static constexpr size_t kStreamsMax = 32;
  static constexpr size_t kRowsMax = 100;  // more changed runs are sent as one `reload`

  /// `run`: the run whose tasks the page shows; "" for none. At kStreamsMax the answer is status
  /// 503. `fields` are the header lines of each response.
  void add(HttpReply reply, const std::string& run, const std::string& fields);
  /// Sends what has changed since the last call:
  ///   event: reload  data: {"writer":true}                                         all is new
  ///   event: runs    data: {"writer":true,"changed":[rows],"removed":[ids]}
  ///   event: run     data: {"run":"…","status":"…","counts":{…},…}        a row of a shown run
  void send_changes(const StateFollower& state, bool has_writer);
  /// Any thread: whether there are streams.
  bool is_watched() const { return count_ > 0; }

 private:
  struct Row {
    std::string json;
    uint64_t hash = 0;
    bool is_active = false;  // its tasks may change while its row does not
  };
  using Rows = std::map<std::string, Row>;  // by run

  struct Stream {
    HttpReply reply;
    std::string run;
    std::shared_ptr<std::atomic<bool>> is_stalled;  // the browser has much to read
    bool is_new = true;
    bool had_writer = false;
    std::map<std::string, uint64_t> rows;  // hash of each row that was sent
    uint64_t shown = 0;                    // TaskTable::sequence() of the run that was sent
  };
  struct Shown {
    Row row;
    uint64_t sequence = 0;  // of its table
    bool is_wanted = false;
  };

  void update_shown(const StateFollower& state, const Rows& rows);
  void send_rows(Stream& stream, const Rows& rows, bool has_writer);
  void send_shown(Stream& stream);
  static void send(Stream& stream, const std::string& event, const std::string& data);

  TaskTables& tables_;
  std::vector<Stream> streams_;         // at most kStreamsMax
  std::map<std::string, Shown> shown_;  // the runs that streams show
  std::atomic<size_t> count_ = 0;
};

}  // namespace flow
