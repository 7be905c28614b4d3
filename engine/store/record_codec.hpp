// Shared by the codecs of the journal and of snapshots; the generated types stay below this line.
#pragma once
#include <google/protobuf/repeated_field.h>

#include "engine/store/journal.pb.h"
#include "engine/store/store.hpp"

namespace flow {

void put_failure(const core::Failure& failure, journal::Failure& m);
bool get_failure(const journal::Failure& m, core::Failure& failure);
/// The newest that this program reads. What names no GPU is written as 1, which older ones read.
/// Of what tells of workers 3 was the last that let go of them when an engine starts.
constexpr uint32_t kGpusSchema = 2, kWorkersSchema = 4, kDrainSchema = 5, kResizeSchema = 6,
                   kNvlinkSchema = 7, kCustomResourcesSchema = 8, kLeadsSchema = 9,
                   kGpuFaultSchema = 10, kMissingResultsSchema = 11, kDeathsSchema = 12,
                   kLateGpusSchema = 13, kMissingInputsSchema = 14, kSchema = 14;
void put_gpu(const Gpu& gpu, journal::Gpu& m);
/// False where they can't be a machine's.
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
Error newer_schema(uint32_t schema, const char* what);

}  // namespace flow
