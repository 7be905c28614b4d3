// What the gate of a front reads before it knows who sends: any bytes, in any pieces, open no
// session and give nothing to read. Between two ends of which one changes what the other sends,
// nothing is read that was not written.
#include <algorithm>
#include <memory>
#include <string>

#include "engine/relay/relay_notes.hpp"
#include "engine/relay/stream_session.hpp"
#include "input.hpp"

namespace {

using namespace flow;
using namespace flow::cluster;

SessionOptions options_of(Role role) {
  SessionOptions options;
  options.role = role;
  options.name = "node";
  options.version = "1";
  options.secret = std::make_shared<const Secret>();
  return options;
}

void check_strangers(fuzz::Input& input) {
  StreamSession gate(options_of(Role::head), "stranger", 0);
  size_t sent = gate.take_output().size();
  int64_t now_us = 0;
  while (!input.is_empty()) {
    std::string piece = input.bytes(input.number(2));
    gate.receive(piece, now_us += 1000);
    gate.tick(now_us);
    sent += gate.take_output().size();
    FLOW_CHECK(!gate.is_open() && gate.waiting() == 0 && gate.window() == 0);
    FLOW_CHECK(gate.take_notes().empty() && sent <= 2 * kHandshakeBytesMax);
  }
}

/// The worker's bytes arrive in pieces; some pieces are changed or dropped.
void check_changes(fuzz::Input& input) {
  StreamSession gate(options_of(Role::head), "worker", 0);
  StreamSession worker(options_of(Role::worker), "front", 0);
  bool is_changed = false;
  std::string written, read;
  for (int step = 0; step < 200 && !input.is_empty(); step++) {
    uint8_t what = input.byte();
    worker.receive(gate.take_output(), step);
    if (size_t size = std::min<size_t>(worker.window(), what); size > 0) {
      std::string bytes(size, static_cast<char>(what));
      worker.write(bytes);
      written += bytes;
    }
    if (worker.is_open() && what % 16 == 1) worker.tell(RelayNote{}.encode());
    std::string sent = worker.take_output();
    if (what % 8 == 7 && !sent.empty()) {
      uint8_t with = input.byte();
      sent[input.number(2) % sent.size()] ^= static_cast<char>(with);
      is_changed = is_changed || with != 0;
    }
    if (what % 64 == 6 && !sent.empty()) {
      sent.pop_back();
      is_changed = true;
    }
    size_t half = sent.size() / 2;
    gate.receive(std::string_view(sent).substr(0, half), step);
    gate.receive(std::string_view(sent).substr(half), step);
    std::string got(gate.waiting(), '\0');
    gate.read(got.data(), got.size());
    read += got;
    FLOW_CHECK(written.starts_with(read));
    for (const std::string& note : gate.take_notes()) FLOW_CHECK(RelayNote::parse(note));
    FLOW_CHECK(is_changed || !gate.has_ended());
  }
  FLOW_CHECK(is_changed || written == read || !gate.is_open());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  uint8_t mode = input.byte();
  auto note = RelayNote::parse({reinterpret_cast<const char*>(data), size});
  FLOW_CHECK(!note || RelayNote::parse(note->encode()) == note);
  if (mode % 2 == 0) {
    check_strangers(input);
  } else {
    check_changes(input);
  }
  return 0;
}
