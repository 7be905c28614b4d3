// Event files of TensorBoard: records with checksums (TFRecord), each a tensorflow.Event.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// `content` as one record: its length, its masked checksum, itself, and its masked checksum.
std::string tensorboard_record(std::string_view content);
/// The content of an event file: the version, then each point as a scalar whose tag is the metric.
/// In the order of steps, because TensorBoard drops the points at and after a step that returns.
std::string tensorboard_events(const std::vector<const MetricSeries*>& series);

/// As Reader::write_tensorboard(). Throws Failed.
std::vector<std::string> write_tensorboard_files(const std::string& directory, const RunInfo& run,
                                                 const std::vector<MetricSeries>& series);

}  // namespace flow
