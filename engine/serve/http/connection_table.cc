#include "engine/serve/http/connection_table.hpp"

#include "engine/serve/http/http_connection.hpp"

namespace flow {

void ConnectionTable::add(const Connection& connection) {
  Entry& entry = connection->entry();
  auto& list = phases_[static_cast<size_t>(entry.phase)];
  entry.since = Clock::now();
  entry.at = list.insert(list.end(), connection);
  size_++;
}

void ConnectionTable::enter(Entry& entry, Phase phase) {
  auto& to = phases_[static_cast<size_t>(phase)];
  to.splice(to.end(), phases_[static_cast<size_t>(entry.phase)], entry.at);
  entry.phase = phase;
  entry.since = Clock::now();
}

void ConnectionTable::remove(Entry& entry) {
  hold(entry, 0);
  size_--;
  phases_[static_cast<size_t>(entry.phase)].erase(entry.at);
}

std::vector<ConnectionTable::Connection> ConnectionTable::lapsed(Phase phase,
                                                                 Clock::duration duration,
                                                                 Clock::time_point now) {
  std::vector<Connection> found;
  for (const Connection& each : all(phase)) {
    if (each->entry().since + duration > now) break;
    found.push_back(each);
  }
  return found;
}

const std::list<ConnectionTable::Connection>& ConnectionTable::all(Phase phase) const {
  return phases_[static_cast<size_t>(phase)];
}

bool ConnectionTable::fits(const Entry& entry, uint64_t bytes) const {
  uint64_t others = bytes_ - entry.bytes;
  return bytes <= entry.bytes || others + bytes <= bytes_max_;
}

bool ConnectionTable::reserve(Entry& entry, uint64_t bytes) {
  if (!fits(entry, bytes)) return false;
  hold(entry, bytes);
  return true;
}

void ConnectionTable::hold(Entry& entry, uint64_t bytes) {
  bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
}

}  // namespace flow
