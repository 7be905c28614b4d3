// The streams of the GPU of device.cc. What is put on one is done as late as it may be: when
// something after it is waited for. So memory that is used too early or given up too early shows.
#pragma once
#include <cstdint>
#include <functional>

namespace flow::emulator {

class Stream;

/// The first stream of a thread is its kernels': kernels run at their launch, behind all that was
/// put there. Each later one has a thread of its own, and begins at once what it may where the
/// environment has FLOW_EMULATED_STREAMS=early: what does not wait for what comes before it shows.
Stream* new_stream();
/// When all is done that was put on it.
void free_stream(Stream* stream);
void enqueue(Stream* stream, std::function<void()> work);
/// Returns when all is done that was put on it until now.
void wait_for(Stream* stream);
/// All streams of kernels.
void wait_for_kernels();

struct Event {
  Stream* stream = nullptr;
  uint64_t number = 0;  // of what was put there before
  int asked = 0;
};
void record(Event& event, Stream* stream);
void wait_for(const Event& event);
/// What is put on the stream from now on waits for it.
void follow(const Event& event, Stream* stream);
/// A GPU comes to it some time, whether or not anything waits.
bool has_completed(Event& event);

}  // namespace flow::emulator
