// What attempts held and used, as products of amount and time. The core adds it up when attempts
// end.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/worker_selector.hpp"

namespace flow {

/// How an attempt ended, which decides the part of a cost report that it counts to.
enum class AttemptEnding : uint8_t {
  succeeded,  // its result counts; of a service, it ended with its run
  failed,     // by its task: another attempt had to do it again, or the task failed
  lost,       // by its worker or its engine, which ended
  stopped,    // on request, with its state saved. The numbers are stored: only append
};
constexpr size_t kOutcomes = 4;

/// GPU time by model: "NVIDIA H200" and thousandths of a GPU times milliseconds.
using GpuTimes = std::vector<std::pair<std::string, double>>;

/// The sum over attempts of one task instance that have the same outcome and the same worker
/// labels. Doubles hold the products exactly up to 2^53.
struct Consumption {
  AttemptEnding outcome = AttemptEnding::succeeded;
  Labels labels;            // of the workers; sorted by name
  uint32_t attempts = 0;    // of a gang: counted where its rank 0 ran
  double rank_ms = 0;       // time from assigned to ended, of each rank
  double cpu_milli_ms = 0;  // held CPUs, in thousandths, times milliseconds
  double memory_byte_ms = 0;
  GpuTimes gpus;                  // sorted by model
  double cpu_used_us = 0;         // measured
  uint32_t unmeasured = 0;        // attempts whose CPU time is not known
  double gpu_stage_milli_ms = 0;  // of `gpus`, before the function or the command began
  // Measured: utilisation times time, the part of `gpus` of which it is known, and energy.
  double gpu_used_milli_ms = 0, gpu_measured_milli_ms = 0, gpu_energy_mj = 0;
  double gpu_rank_milli_ms = -1;  // of `gpus`, while a rank waited for others; below 0: unknown
  double moved_bytes = 0;         // sent between machines
  bool operator==(const Consumption&) const = default;
};

void add_gpu_time(GpuTimes& times, const std::string& model, double milli_ms);
/// Adds `more`, whose outcome and labels are the same.
void add(Consumption& to, const Consumption& more);
/// Adds `more` to the entry with its outcome and labels, or appends it.
void merge(std::vector<Consumption>& to, const Consumption& more);

}  // namespace flow
