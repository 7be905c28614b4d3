// What is kept free for units that have to wait, so that who goes before them delays none.
#pragma once
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/sched/usage_overlay.hpp"

namespace flow::core {

/// Something is kept for so many of those that were passed over, the first in order.
constexpr size_t kReservationsMax = 4;
/// And so many are tried, as some wait for what nobody knows when it comes.
constexpr size_t kReservationTriesMax = 16;
/// When an attempt ends of whose like nothing has ended yet.
constexpr Time kNever = INT64_MAX;

/// When an attempt that starts now is expected to end.
Time end_if_started(const State& state, const Run& run, UnitId unit);

/// What is free in both.
FreeResources element_min(const FreeResources& a, const FreeResources& b);

/// Of one that has to wait: when and where it is expected to find room.
struct Reservation {
  ReadyHead owner;
  Time at = 0;
  std::vector<Placement> placements;
  std::map<WorkerId, FreeResources>
      remaining;  // what is free then beside it, on the hosts where it will be
};

/// Of one in a run that has slots of its own, fewer than the machines have CPUs.
struct SlotReservation {
  ReadyHead owner;
  Time at = 0;              // it is expected to begin
  int64_t spare_milli = 0;  // so many more than it asks for are free then
};

/// Those that were passed over in one turn of the scheduler, and what is kept for them. It is
/// worked out when somebody behind them finds room: where none does, nothing is.
class Backfill {
 public:
  explicit Backfill(const State& state) : state_(state) {}

  void pass_over(const ReadyHead& head);
  /// Whether anybody who was passed over might want the room that this takes.
  bool is_wanted(const Assigned& assigned) const;
  /// `free_by_worker` is what is free beside the proposals.
  void reserve_for_passed(const std::vector<FreeResources>& free_by_worker,
                          const std::vector<Event>& proposals, UsageOverlay& overlay);

  bool has_reservations() const { return !reservations_.empty() || !slot_reservations_.empty(); }
  /// What of a host's room one may take that ends then, and of its run's slots.
  FreeResources free_for(WorkerId worker, const FreeResources& free, Time end) const;
  bool is_reserved(WorkerId worker, Time end) const {
    return reservation_owner(worker, end) != nullptr;
  }
  bool has_slots(const Run& run, const SchedulingClass& request, Time end) const;
  void take(const Run& run, const SchedulingClass& request, const Assigned& assigned, Time end);

  /// For whom room on a host, or slots of a run, are kept from one that ends then; null where for
  /// nobody.
  const ReadyHead* reservation_owner(WorkerId worker, Time end) const;
  const ReadyHead* slot_reservation_owner(const Run& run) const;

 private:
  /// Something ends, or one that waits begins.
  struct Change {
    Time at = 0;
    WorkerId worker = 0;
    const Run* run = nullptr;
    SchedulingClass held;
    std::vector<std::string> gpus;
    uint32_t expected_us = 0;
    size_t begins = SIZE_MAX;  // which of `reservations_`
    bool is_end() const { return begins == SIZE_MAX; }
    bool operator<(const Change& other) const { return at < other.at; }
  };
  void find_ends(const std::vector<Event>& proposals);
  void add_end(const Run& run, UnitId unit, Time began, WorkerId at, SchedulingClass held,
               const std::vector<std::string>& gpus, uint32_t expected_us);
  void apply_change(const Change& change, std::vector<FreeResources>& free_by_worker) const;
  bool could_ever_fit(const SchedulingClass& request) const;
  /// Not before so many changes; after how many, or nothing where there is never room for it.
  std::optional<size_t> reserve(const ReadyHead& head, std::vector<FreeResources> free_by_worker,
                                size_t changes_before);
  /// What `own` takes of what is free beside `other`.
  void take_for(const Reservation& own, Reservation& other) const;
  void add_reservation(Reservation reservation, size_t changes_before);
  /// Of its run's slots, of which `used_milli` are taken, beside what it asks for; below 0 where
  /// these are too few.
  int64_t slots_left(const ReadyHead& head, int64_t used_milli, size_t changes) const;
  /// After how many changes there are enough.
  size_t slots_suffice(const ReadyHead& head, int64_t used_milli) const;

  const State& state_;
  std::vector<ReadyHead> passed_;  // nothing was tried for them yet
  size_t tried_ = 0;
  std::vector<Reservation> reservations_;
  std::map<RunId, SlotReservation> slot_reservations_;
  std::vector<Change> changes_;  // in the order in which they are expected
  bool has_running_ = false;     // they have what runs
  size_t proposals_seen_ = 0;    // and so many of the proposals
};

}  // namespace flow::core
