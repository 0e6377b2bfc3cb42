// The rate limiter, as in Reverb, with its state in shared words.
//
//   diff = inserts * samples_per_insert - samples   stays within   min_size * samples_per_insert ± error_buffer
//
// When the rate is changed, counting restarts in the middle of the band.
#pragma once

#include "view.h"
#include "process.h"

namespace apexrl {

enum class SampleStatus { ok, too_few, limited, all_zero, closed, yielded };

// Used by the owner. Workers only compare `inserted` with `insert_limit`.
class Limiter {
 public:
  explicit Limiter(const View& view) : view_(view) {}

  // Below `min_size` items there is no room for more: part-filled chunks take it.
  bool crowded = false;

  uint64_t min_size() const {
    // A full replay may hold up to a chunk less than its capacity: no more can be waited for.
    const Geometry& g = view_.geometry();
    const uint64_t most = g.capacity > g.chunk_items ? g.capacity - g.chunk_items + 1 : 1;
    return std::clamp<uint64_t>(header().min_size.load(std::memory_order_relaxed), 1, most);
  }

  // Whether `n` of `items` items may be sampled now.
  SampleStatus may_sample(uint64_t items, size_t n) {
    Header& h = header();
    if (items < min_size() && !(crowded && items > 0)) return SampleStatus::too_few;
    const Sampler sampler = view_.geometry().sampler;
    if (sampler != Sampler::prioritized && items < n) {  // a batch has each item once
      if (batch_ < n) {
        batch_ = n;
        update();
        wake_lanes();
      }
      return SampleStatus::too_few;
    }
    if (sampler == Sampler::fifo) return SampleStatus::ok;
    const double rate = h.samples_per_insert.load(std::memory_order_relaxed);
    if (rate <= 0.0) return SampleStatus::ok;
    double error = h.error_buffer.load(std::memory_order_relaxed);
    const double least = std::max(double(n), rate);  // the band must have room for one batch and for one insert
    if (error < least) {
      error = least;
      h.error_buffer.store(error, std::memory_order_relaxed);
      update();
    }
    const double inserted = double(h.absorbed.load(std::memory_order_relaxed));
    const double sampled = double(h.sampled.load(std::memory_order_relaxed));
    const double diff = inserted * rate - sampled - h.diff_offset.load(std::memory_order_relaxed);
    const bool fine = diff - double(n) >= double(min_size()) * rate - error;
    return fine ? SampleStatus::ok : SampleStatus::limited;
  }

  // Updates the limit of inserted items for the workers. While there are too few items to sample, none waits.
  void update() {
    Header& h = header();
    const double rate = h.samples_per_insert.load(std::memory_order_relaxed);
    uint64_t limit = ~uint64_t(0);
    if (view_.geometry().sampler == Sampler::fifo) {  // nothing is dropped: a full queue makes writers wait
      const uint64_t allowed = h.allowed.load(std::memory_order_relaxed), capacity = view_.geometry().capacity;
      limit = h.sampled.load(std::memory_order_relaxed) + (allowed == 0 ? capacity : std::min(allowed - 1, capacity));
    } else if (rate > 0.0) {
      const double sampled = double(h.sampled.load(std::memory_order_relaxed));
      const double most = double(min_size()) * rate + h.error_buffer.load(std::memory_order_relaxed);
      const double room = (most + sampled + h.diff_offset.load(std::memory_order_relaxed)) / rate;
      const uint64_t items = h.items.load(std::memory_order_relaxed), least = std::max(min_size(), batch_);
      const uint64_t lacking = crowded ? 0 : least - std::min(items, least);
      limit = std::max(h.absorbed.load(std::memory_order_relaxed) + lacking, uint64_t(std::clamp(room, 0.0, 0x1p62)));
    }
    h.insert_limit.store(limit, std::memory_order_release);
  }

  void set(uint64_t min_size, double samples_per_insert, double insert_band) {
    Header& h = header();
    if (samples_per_insert != h.samples_per_insert.load(std::memory_order_relaxed)) {
      const uint64_t inserted = h.absorbed.load(std::memory_order_relaxed);
      const double beyond = double(inserted > min_size ? inserted - min_size : 0);
      h.diff_offset.store(beyond * samples_per_insert - double(h.sampled.load(std::memory_order_relaxed)),
                          std::memory_order_relaxed);
    }
    h.min_size.store(min_size, std::memory_order_relaxed);
    h.samples_per_insert.store(samples_per_insert, std::memory_order_relaxed);
    h.insert_band.store(insert_band, std::memory_order_relaxed);
    h.error_buffer.store(insert_band * double(min_size) * samples_per_insert, std::memory_order_relaxed);
    update();
    wake_lanes();
  }

  // Wakes the workers that waited for room.
  void wake_lanes() {
    Header& h = header();
    if (!h.lane_waits.load(std::memory_order_relaxed)) return;
    h.lane_waits.store(0, std::memory_order_seq_cst);
    const bool room = h.inserted.load(std::memory_order_relaxed) < h.insert_limit.load(std::memory_order_relaxed);
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) {
      Lane& lane = view_.lane(l);
      if (!lane.waiting.load(std::memory_order_seq_cst)) continue;
      if (room) {
        futex_wake(lane.bell);
      } else {
        h.lane_waits.store(1, std::memory_order_relaxed);
      }
    }
  }

 private:
  Header& header() const { return view_.header(); }

  View view_;
  uint64_t batch_ = 0;  // items of the largest batch for which there were too few
};

}  // namespace apexrl
