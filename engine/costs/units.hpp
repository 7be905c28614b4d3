// Conversions of what attempts held into hours.
#pragma once
#include "engine/costs/consumption.hpp"

namespace flow {

constexpr double kMilliPerUnit = 1000;
constexpr double kMsPerHour = 3'600'000;
constexpr double kUsPerHour = 3'600'000'000;
constexpr double kBytesPerGb = 1e9;

inline double cpu_hours(const Consumption& used) {
  return used.cpu_milli_ms / kMilliPerUnit / kMsPerHour;
}
inline double memory_gb_hours(const Consumption& used) {
  return used.memory_byte_ms / kBytesPerGb / kMsPerHour;
}
inline double gpu_hours(double milli_ms) { return milli_ms / kMilliPerUnit / kMsPerHour; }
inline double gpu_hours(const Consumption& used) {
  double milli_ms = 0;
  for (const auto& [model, each] : used.gpus) milli_ms += each;
  return gpu_hours(milli_ms);
}

}  // namespace flow
