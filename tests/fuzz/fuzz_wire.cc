// Between a worker and its executors: frames are split equally however the bytes arrive, every
// message survives writing and reading, and a report is converted without loss.
#include <google/protobuf/stubs/logging.h>

#include "engine/worker/slot.hpp"

namespace {

const auto kQuiet = google::protobuf::SetLogHandler(nullptr);

std::vector<std::string> cut(std::string_view bytes, size_t step) {
  std::vector<std::string> frames;
  flow::FrameCutter cutter;
  bool broken = false;
  for (size_t at = 0; at < bytes.size() && !broken; at += step) {
    cutter.add(bytes.substr(at, step));
    std::string_view frame;
    while (cutter.next(frame, broken)) frames.emplace_back(frame);
  }
  if (broken) frames.emplace_back("broken");
  return frames;
}

template <typename Message>
bool read(const std::string& frame, Message& message) {
  if (!message.ParseFromString(frame)) return false;
  std::string framed;
  flow::append_frame(framed, message);
  auto again = cut(framed, framed.size());
  Message back;
  FLOW_CHECK(again.size() == 1 && back.ParseFromString(again[0]));
  FLOW_CHECK(back.SerializeAsString() == again[0]);
  return true;
}

void check_report(flow::wire::FromExecutor& message) {
  flow::Report report{};
  if (!flow::to_report(message, report)) return;
  std::visit(
      [](const auto& body) {
        if constexpr (requires { body.blobs; })
          for (const auto& [digest, bytes] : body.blobs) FLOW_CHECK(flow::sha256(bytes) == digest);
      },
      report.body);
  const auto* finished = report.as<flow::TaskFinished>();
  if (finished == nullptr) return;
  FLOW_CHECK(finished->outcome <= flow::TaskFinished::Outcome::stopped);
  FLOW_CHECK(finished->failure.cause <= flow::core::kCauseLast);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> frames = cut(bytes, bytes.size() + 1);
  size_t step = 1 + (size > 0 ? data[0] % 7 : 0);
  FLOW_CHECK(cut(bytes, step) == frames);
  for (const std::string& frame : frames) {
    flow::wire::ToExecutor order;
    read(frame, order);
    flow::wire::FromExecutor said;
    if (read(frame, said)) check_report(said);
  }
  return 0;
}
