// What records and snapshots have in common: failures, GPUs, ranks, labels and quantities as
// messages and back. For engine/store only, since it shows generated types.
#pragma once
#include <google/protobuf/repeated_field.h>

#include <string>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/store/journal.pb.h"

namespace flow {

// Each get_… returns false if a value is out of range.

void put_failure(const core::Failure& failure, journal::Failure& m);
bool get_failure(const journal::Failure& m, core::Failure& failure);
void put_gpu(const Gpu& gpu, journal::Gpu& m);
bool get_gpus(const google::protobuf::RepeatedPtrField<journal::Gpu>& from, std::vector<Gpu>& gpus);
void put_ranks(const std::vector<core::Placement>& ranks,
               google::protobuf::RepeatedPtrField<journal::Placement>& to);
bool get_ranks(const google::protobuf::RepeatedPtrField<journal::Placement>& from,
               std::vector<core::Placement>& ranks);
void put_labels(const Labels& labels, google::protobuf::RepeatedPtrField<journal::Label>& to);
bool get_labels(const google::protobuf::RepeatedPtrField<journal::Label>& from, Labels& labels);
void put_quantities(const ResourceQuantities& quantities,
                    google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& to);
bool get_quantities(const google::protobuf::RepeatedPtrField<journal::ResourceQuantity>& from,
                    ResourceQuantities& quantities);
void put_resources(const core::AttemptResources& computed, journal::AttemptResources& m);
bool get_resources(const journal::AttemptResources& m, core::AttemptResources& computed);

void put_attempt_usage(const core::AttemptUsage& usage, journal::AttemptUsage& m);
bool get_attempt_usage(const journal::AttemptUsage& m, core::AttemptUsage& usage);
/// Of a unit; `unit` itself is not theirs.
void put_totals(const core::AttemptTotals& totals, journal::Totals& m);
bool get_totals(const journal::Totals& m, core::AttemptTotals& totals);
void put_times(const core::AttemptTimes& times, journal::Unit& m);
bool get_times(const journal::Unit& m, core::AttemptTimes& times);

void put_actions(const std::vector<core::Action>& actions,
                 google::protobuf::RepeatedPtrField<journal::Action>& to);
bool get_actions(const google::protobuf::RepeatedPtrField<journal::Action>& from,
                 std::vector<core::Action>& actions);

/// The reason why no flow could have admitted a decoded event in any state: a negative amount, a
/// worker beyond the limit, an empty name. "" or "`jobs` is negative".
std::string event_problem(const core::Event& event);

}  // namespace flow
