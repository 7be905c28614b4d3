// The streams of the emulated GPU in device.cc. Queued work runs as late as possible: when
// something after it is awaited. Memory that is used or released too early is thus revealed.
#pragma once
#include <cstdint>
#include <functional>

namespace flow::emulator {

class Stream;

/// A thread's first stream is its kernel stream: kernels run at launch, after all work queued
/// there. Each later stream has a thread of its own. If FLOW_EMULATED_STREAMS=early is set, it
/// starts work as early as allowed, which reveals work that does not wait for its predecessors.
Stream* new_stream();
/// Frees the stream once all its queued work is done.
void free_stream(Stream* stream);
void enqueue(Stream* stream, std::function<void()> work);
/// Returns when all work that is now queued is done.
void wait_for(Stream* stream);
/// Waits for the kernel streams of all threads.
void wait_for_kernels();

struct Event {
  Stream* stream = nullptr;
  uint64_t number = 0;  // of the work queued before
  int asked = 0;
};
void record(Event& event, Stream* stream);
void wait_for(const Event& event);
/// Later work on the stream waits for the event.
void follow(const Event& event, Stream* stream);
/// Makes progress too: a GPU completes an event even if nothing waits for it.
bool has_completed(Event& event);

}  // namespace flow::emulator
