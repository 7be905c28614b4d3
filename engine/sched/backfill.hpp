// Reservations for units that have to wait, and backfill: a later unit may start early if it delays
// no reservation.
#pragma once
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/sched/usage_overlay.hpp"

namespace flow::core {

/// Maximum number of reservations: the first units in order that do not fit get one.
constexpr size_t kReservationsMax = 4;
/// Maximum number of units for which a reservation is tried; for some the start cannot be
/// predicted.
constexpr size_t kReservationTriesMax = 16;
/// Expected end of an attempt of a task of which no attempt has ended yet.
constexpr Time kNever = INT64_MAX;

/// Expected end of an attempt that starts now.
Time end_if_started(const State& state, const Run& run, UnitId unit);

/// The element-wise minimum.
FreeResources element_min(const FreeResources& a, const FreeResources& b);

/// Expected start time and workers of a unit that has to wait.
struct Reservation {
  ReadyHead owner;
  Time at = 0;
  std::vector<Placement> placements;
  std::map<WorkerId, FreeResources> remaining;  // free resources on its workers after it started
};

/// A reservation of slots in a run that has fewer slots than the workers have CPUs.
struct SlotReservation {
  ReadyHead owner;
  Time at = 0;              // it is expected to begin
  int64_t spare_milli = 0;  // free slots beyond its request at that time
};

/// The units that did not fit in one call of the scheduler, and their reservations. Reservations
/// are computed only when a later unit could start.
class Backfill {
 public:
  explicit Backfill(const State& state) : state_(state) {}

  void pass_over(const ReadyHead& head);
  /// Whether a unit that was passed over could use the resources of this assignment.
  bool is_wanted(const Assigned& assigned) const;
  /// `free_by_worker`: free resources after the proposals.
  void reserve_for_passed(const std::vector<FreeResources>& free_by_worker,
                          const std::vector<Event>& proposals, UsageOverlay& overlay);

  bool has_reservations() const { return !reservations_.empty() || !slot_reservations_.empty(); }
  /// The part of a worker's free resources, and of a run's slots, that a unit with this expected
  /// end may use.
  FreeResources free_for(WorkerId worker, const FreeResources& free, Time end) const;
  bool is_reserved(WorkerId worker, Time end) const {
    return reservation_owner(worker, end) != nullptr;
  }
  bool has_slots(const Run& run, const SchedulingClass& request, Time end) const;
  void allocate(const Run& run, const SchedulingClass& request, const Assigned& assigned, Time end);

  /// The unit whose reservation on the worker, or of the run's slots, excludes a unit with this
  /// end; null if none does.
  const ReadyHead* reservation_owner(WorkerId worker, Time end) const;
  const ReadyHead* slot_reservation_owner(const Run& run) const;

 private:
  /// The end of an attempt, or the start of a reserved unit.
  struct Change {
    Time at = 0;
    WorkerId worker = 0;
    const Run* run = nullptr;
    SchedulingClass held;
    std::vector<std::string> gpus;
    uint32_t expected_us = 0;
    size_t begins = SIZE_MAX;  // index in `reservations_`
    bool is_end() const { return begins == SIZE_MAX; }
    bool operator<(const Change& other) const { return at < other.at; }
  };
  void find_ends(const std::vector<Event>& proposals);
  void add_end(const Run& run, UnitId unit, Time began, WorkerId at, SchedulingClass held,
               const std::vector<std::string>& gpus, uint32_t expected_us);
  void apply_change(const Change& change, std::vector<FreeResources>& free_by_worker) const;
  bool could_ever_fit(const SchedulingClass& request) const;
  /// Tries to reserve after at least this many changes. Returns the number of changes after which
  /// it fits, or nothing if it never does.
  std::optional<size_t> reserve(const ReadyHead& head, std::vector<FreeResources> free_by_worker,
                                size_t changes_before);
  /// Subtracts what `own` takes from what remains free next to `other`.
  void subtract(const Reservation& own, Reservation& other) const;
  void add_reservation(Reservation reservation, size_t changes_before);
  /// Free slots of the run after the unit's request, with `used_milli` in use; negative if too few.
  int64_t slots_left(const ReadyHead& head, int64_t used_milli, size_t changes) const;
  /// Number of changes after which the run has enough free slots.
  size_t slots_suffice(const ReadyHead& head, int64_t used_milli) const;

  const State& state_;
  std::vector<ReadyHead> passed_;  // units without a reservation attempt so far
  size_t tried_ = 0;
  std::vector<Reservation> reservations_;
  std::map<RunId, SlotReservation> slot_reservations_;
  std::vector<Change> changes_;  // in the expected order
  bool has_running_ = false;     // running attempts are included
  size_t proposals_seen_ = 0;    // number of proposals that are included
};

}  // namespace flow::core
