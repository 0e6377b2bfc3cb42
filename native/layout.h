// The layout of a replay's segment: plain data, and atomics that work across processes.
//
//   Header | lanes | slot metas | leaves | staged priorities | youths, where age counts | chains, where columns are ragged |
//   slots | blocks, where columns are ragged
//
// A slot holds the rows of one chunk: small columns together in records, large ones in planes of their own. Its state is
// one 8-byte word. A process may die at any instruction: the next owner can tell from the words what every slot is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "crash.h"

namespace apexrl {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

enum class Kind : uint32_t { rows = 0, transition = 1, sequence = 2, unroll = 3 };
enum class Sampler : uint32_t { prioritized = 0, fifo = 1, lifo = 2, max_heap = 3, min_heap = 4 };  // uniform: prioritized with alpha 0
enum class Remover : uint32_t { fifo = 0, proportional = 1, lifo = 2, max_heap = 3, min_heap = 4 };
enum class Order { none, newest, largest, smallest };  // of items (ranking.h)

// The head of a row in a stream, at the start of its record. It is complete when the first window that holds the row is
// published, except `flags` and `cell`: the writer marks later that an item begins here, while windows of earlier items
// are read. So those two are accessed as relaxed atomics, by the functions below.
struct StepHead {
  float reward;
  uint8_t flags;
  uint8_t age;    // steps since the episode began, saturating at 255: how many earlier rows belong to it
  uint16_t cell;  // of the item that begins here: where its per-item columns are
};
enum : uint8_t {
  kTerminated = 1,
  kTruncated = 2,
  kFinal = 4,    // a final observation: no step was taken here
  kStart = 8,    // sequence, unroll: on the grid of starts
  kItem = 16,    // an item begins here
  kAbsent = 32,  // before the stream's first row
};

inline uint8_t flags_of(const StepHead& head) {
  return std::atomic_ref<uint8_t>(const_cast<uint8_t&>(head.flags)).load(std::memory_order_relaxed);
}
inline uint16_t cell_of(const StepHead& head) {
  return std::atomic_ref<uint16_t>(const_cast<uint16_t&>(head.cell)).load(std::memory_order_relaxed);
}
inline void mark(StepHead& head, uint8_t flags, uint16_t cell) {
  APEXRL_POINT();
  std::atomic_ref<uint16_t>(head.cell).store(cell, std::memory_order_relaxed);
  std::atomic_ref<uint8_t>(head.flags).store(flags, std::memory_order_relaxed);
}

struct Column {
  uint32_t bytes;        // of one row
  uint32_t align;        // of one element
  uint8_t windowed;      // stacked, and also read n steps later
  uint8_t sampled;       // gathered by sample
  uint8_t plane;         // has a plane of its own; else lies in the record
  uint8_t per_item;      // one value per item, in a plane of cells
  uint32_t offset;       // in the record
  uint64_t plane_offset; // in the slot
  uint32_t ragged = 0;   // its length column + 1, where it varies in length (heap.h); `bytes` are its most; 0: it does not
  uint32_t unit = 0;     // ragged: bytes of one element of its first dimension
  uint32_t compressed = 0;  // ragged: always `bytes` long, and in fewer of them where they can be (compression.h)

  bool operator==(const Column&) const = default;
};

struct Geometry {
  uint64_t capacity;   // items
  uint64_t most;       // items, where the capacity is a soft limit
  uint32_t chunk;      // L: item positions per slot, one a row; an item begins only at some of them
  uint32_t chunk_items;  // the most items that a slot can hold
  uint32_t behind;     // rows before the first item position that its window may need
  uint32_t ahead;      // rows after the last
  uint32_t rows;       // behind + chunk + ahead
  uint32_t leaves;     // of a slot: chunk, rounded up to 8 from 3 on
  uint32_t slots;
  uint32_t at_will;    // slots that workers take without the owner, which hands out the others when none is free
  uint32_t lanes;
  uint32_t streams;    // of all lanes together; also entries of one lane's tables
  uint32_t desk;       // free slots kept ready for a lane
  uint32_t record;     // bytes
  uint32_t columns;
  uint32_t stack;
  uint32_t n_step;     // steps of an item: n of a transition, length of a sequence or unroll
  uint32_t burn_in;    // steps before an item's own, to warm a recurrent state
  uint32_t stride;     // between the starts of items
  uint32_t cells;      // per-item values in a slot
  uint32_t trim_every; // sampled batches between trims to the capacity
  Kind kind;
  Sampler sampler;
  Remover remover;
  uint32_t independent;  // draws: else stratified
  uint32_t consumes;     // an item goes when it is sampled
  double remover_alpha;
  double recency_half_life;  // items; 0: age in items does not count
  double lag_half_life;      // weights versions; 0: their age does not count
  uint32_t version_column;   // + 1; 0: none
  uint32_t offset_bits, slot_bits;  // of a key, low to high: offset, slot, generation
  double gamma, alpha, eps;
  uint64_t seed;
  uint64_t slot_bytes;
  uint32_t block;        // bytes of a block of ragged values; 0: no column is ragged
  uint32_t slot_blocks;  // the most that a slot needs
  uint64_t blocks;
  uint64_t lane_bytes, lanes_at, metas_at, leaves_at, staged_at, youths_at, chains_at, slots_at, blocks_at, json_at, json_bytes, total;

  bool operator==(const Geometry&) const = default;
};

constexpr uint32_t kMaxColumns = 128;
constexpr double kLargestPriority = 1e300;  // after eps and alpha: sums of as many as there may be stay finite
constexpr uint32_t kRecordColumn = 256;  // bytes from which a column has a plane of its own

// Lock indices in the segment.
constexpr uint32_t kOwnerLock = 0;
constexpr uint32_t kLaneLock = 1;  // + lane

// --- the slot word: state (3 bits) | lane (13 bits) | generation (48 bits)

enum class SlotState : uint64_t {
  unused = 0,     // never handed out; below Header::next_unused: being claimed
  leased = 1,     // a lane writes it
  closed = 2,     // its lane is done with it
  committed = 3,  // complete, in eviction order
  free = 4,
};
struct SlotWord {
  SlotState state;
  uint32_t lane;
  uint64_t generation;
  static SlotWord unpack(uint64_t w) {
    return {SlotState(w & 7), uint32_t((w >> 3) & 0x1fff), w >> 16};
  }
  uint64_t pack() const { return uint64_t(state) | uint64_t(lane) << 3 | generation << 16; }
  // False: a faulty process has written it. Such a slot is never used again.
  bool sound(const Geometry& g) const { return state <= SlotState::free && lane < g.lanes; }
};

struct SlotMeta {
  Shared<uint64_t> word;
  Shared<uint64_t> order;    // while leased: of use by its lane; once committed: of eviction
  Shared<uint64_t> past;     // of the previous generation: its number << 16 | its `count`
  Shared<uint32_t> count;    // item positions published by the writer (a prefix)
  Shared<uint32_t> items;    // real items among them (no final observations)
  Shared<uint32_t> drained;  // item positions whose leaves the owner has set, a prefix
  Shared<uint32_t> consumed; // fifo: item positions that were given out, a prefix
  Shared<uint32_t> stream;   // of its lane
};
static_assert(sizeof(SlotMeta) == 48);

// The head of a block of ragged values; its bytes follow.
struct BlockHead {
  Shared<uint32_t> slot;  // + 1, to which it belongs; 0: free
  Shared<uint32_t> next;  // + 1, of its slot's blocks; 0: none. Of a free block always 0
};

// Fixed part of a lane; behind it desk[], current[], next[]: slot + 1, or 0.
struct alignas(64) Lane {
  Shared<uint32_t> active;
  Shared<uint32_t> streams;
  Shared<uint32_t> bell;       // rung by the owner: slots or room have come
  Shared<uint32_t> waiting;    // the worker waits at the bell
  Shared<uint64_t> process;    // of the worker (process_token)
  Shared<uint64_t> generation; // leases of this lane so far
  Shared<uint64_t> published;  // changes whenever the worker publishes or closes something
  Shared<uint64_t> settled;    // the value of `published` that the owner has taken in
};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t bytes;
  Geometry geometry;
  Column column[kMaxColumns];

  alignas(64) Shared<uint64_t> next_unused;
  Shared<uint64_t> committed;                // slots whose memory is there to be written (growth.h)
  Shared<uint64_t> growth_refused;           // times that more was refused
  Shared<uint64_t> blocks_committed;         // the same of blocks
  Shared<uint64_t> blocks_touched;           // ever used: one above the highest
  Shared<uint64_t> free_block;               // a hint: all below its low half belong to slots; the high half counts frees
  Shared<uint32_t> blocks_short;             // some worker got no block
  alignas(64) Shared<uint64_t> inserted;     // items ever published
  alignas(64) Shared<uint64_t> max_priority; // bits of the largest (|p|+eps)^alpha so far; 0: none yet
  alignas(64) Shared<uint32_t> bell;         // rung by workers: the owner is needed
  Shared<uint32_t> asleep;                   // the owner's thread sleeps
  Shared<uint32_t> sampler_waits;                   // a sampler waits for items
  Shared<uint32_t> closed;
  Shared<uint32_t> lane_waits;               // some worker waits at its bell
  alignas(64) Shared<uint64_t> insert_limit; // items that may ever be inserted, as things stand
  Shared<uint64_t> absorbed;                 // items ever taken in by the owner
  Shared<uint64_t> items;                    // in the tree now
  Shared<uint64_t> sampled;                  // items ever sampled
  Shared<uint64_t> evicted;
  Shared<uint64_t> updates_applied, updates_stale;
  Shared<uint64_t> next_order;
  Shared<uint64_t> epoch;                    // owners so far
  Shared<uint64_t> owner;                    // its process_token; 0: none, the last one left by itself
  Shared<uint32_t> provisional;              // the owner only evicts for writers: it yields to a process that samples
  Shared<int64_t> wanted;                    // when a process last asked to sample (monotonic ns); 0: none waits
  Shared<uint32_t> granting;                 // slot + 1 that the owner is handing out at this moment
  Shared<uint64_t> lanes_reclaimed;
  Shared<uint64_t> dropped_steps;            // appended, but their window was never completed
  Shared<uint64_t> handed;                   // fifo: items given out that may be in use
  Shared<uint64_t> lost;                     // fifo: items that owners had given out when they died
  Shared<uint64_t> deleted;                  // items that users deleted
  Shared<uint64_t> damaged;                  // words with impossible values that were found here
  Shared<uint64_t> allowed;                  // fifo: items that may wait here, + 1; 0: as many as the capacity
  // the limiter (Reverb's): samples and inserts may drift apart within a band
  Shared<uint64_t> min_size;
  Shared<double> samples_per_insert;         // 0: no limit
  Shared<double> error_buffer;
  Shared<double> diff_offset;                // difference from before the rate was changed, which does not count
  Shared<double> insert_band;                // of min_size * samples_per_insert
};

inline uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

inline uint32_t bits_for(uint64_t n) {  // bits that hold 0 … n-1
  uint32_t bits = 1;
  while ((uint64_t(1) << bits) < n) ++bits;
  return bits;
}

// The order in which a sampler gives items out, and a remover takes them.
inline Order order_of(Sampler sampler) {
  return sampler == Sampler::lifo ? Order::newest : sampler == Sampler::max_heap ? Order::largest
         : sampler == Sampler::min_heap ? Order::smallest : Order::none;
}
inline Order order_of(Remover remover) {
  return remover == Remover::lifo ? Order::newest : remover == Remover::max_heap ? Order::largest
         : remover == Remover::min_heap ? Order::smallest : Order::none;
}

// Whether an item's chance depends on its age.
inline bool decays(const Geometry& g) { return g.recency_half_life > 0.0 || g.lag_half_life > 0.0; }

// Whether the order in which items are taken in makes a difference, beside that of their chunks.
inline bool keeps_order(const Geometry& g) {
  return g.sampler == Sampler::fifo || decays(g) || order_of(g.sampler) != Order::none || order_of(g.remover) != Order::none;
}

// Leaves of all slots, as a sum tree takes them.
inline uint64_t tree_leaves(const Geometry& g) { return round_up(uint64_t(g.leaves) * g.slots, 8); }

// Bytes that a full replay takes at least, its owner's private memory included, if episodes are long beside an item and
// without the slots that are being written. Slots that were never needed take no memory.
inline uint64_t bytes_when_full(const Geometry& g) {
  const uint64_t slots = std::min<uint64_t>((g.most * std::max<uint64_t>(g.stride, 1) + g.chunk - 1) / g.chunk, g.slots);
  const uint64_t trees = g.remover == Remover::proportional ? 3 : 1;  // a leaf's share: its eighth, or those, twice, and a mass
  const uint64_t rankings = (order_of(g.sampler) != Order::none) + (order_of(g.remover) != Order::none);
  const uint64_t own = 32 + g.leaves * ((trees == 1 ? 2 : 12) + rankings * (16 + 16 / 7 + 1));  // and a Ranking's
  const uint64_t ragged = uint64_t(g.block) * g.slot_blocks;
  return sizeof(Header) + g.lane_bytes * g.lanes + slots * (g.slot_bytes + ragged + sizeof(SlotMeta) + (decays(g) ? 3 : 2) * sizeof(double) * g.leaves + own);
}

// Ragged values: bytes of a row's at their longest; of one block without its head; and how many a slot may need, of which
// the last is partly used.
inline uint64_t ragged_row(const std::vector<Column>& columns) {
  uint64_t bytes = 0;
  for (const auto& c : columns) bytes += c.ragged != 0 ? c.bytes : 0;
  return bytes;
}
inline uint32_t block_room(const Geometry& g) { return g.block - uint32_t(sizeof(BlockHead)); }

// A block is small beside what a slot may need, as half of the last one is wasted, and not so small that long values lie
// in many pieces.
inline void lay_out_blocks(Geometry& g, uint64_t ragged_row) {
  g.block = g.slot_blocks = 0;
  g.blocks = 0;
  if (ragged_row == 0) return;
  const uint64_t most = ragged_row * g.rows;  // of 128 columns of 4 GiB at the most
  for (g.block = 256; g.block < 4096 && g.block < most / 256; g.block *= 2) {}
  const uint64_t each = most / block_room(g) + 2;
  if (most > UINT32_MAX) throw std::invalid_argument("the ragged fields of so many rows do not fit a chunk");
  g.slot_blocks = uint32_t(each);
  g.blocks = std::min<uint64_t>(uint64_t(g.slots) * g.slot_blocks, UINT32_MAX - 1);
}

// Frames of a column in one item.
inline size_t frames_of(const Geometry& g, const Column& c) {
  if (c.per_item) return 1;
  const bool windows = g.kind == Kind::sequence || g.kind == Kind::unroll;
  const size_t steps = windows ? size_t(g.burn_in) + g.n_step : 1;
  return c.windowed ? (steps + windows) * g.stack : steps;
}

// Lays out rows and segment. Fills what follows from the sizes already in `g`.
inline void lay_out(Geometry& g, std::vector<Column>& columns) {
  if (columns.size() > kMaxColumns) throw std::invalid_argument("more than 128 fields");
  const uint64_t spare = g.kind == Kind::rows ? uint64_t(g.lanes) * (1 + g.desk) : uint64_t(g.streams) * 2;
  // Positions that are no items: final observations (with the shortest episodes, every second one), and what lies
  // between the starts of sequences. Slots that are never needed are never touched, and cost no memory.
  uint64_t positions = g.most;
  if (g.kind == Kind::transition) positions *= 2;
  if (g.kind == Kind::sequence) positions *= std::max(g.stride, g.n_step) + 1;
  if (g.kind == Kind::unroll) positions *= g.stride;
  uint64_t slots = (positions + g.chunk - 1) / g.chunk + spare + 2;
  g.at_will = uint32_t(std::min<uint64_t>(slots, UINT32_MAX));
  // Slots of a fifo's streams are never evicted: writers that come and go may leave one item in each.
  if (g.sampler == Sampler::fifo && g.kind != Kind::rows) slots = std::max(slots, g.most + spare + 2);
  g.leaves = g.chunk <= 2 ? g.chunk : uint32_t(round_up(g.chunk, 8));
  if (slots > UINT32_MAX / g.leaves) throw std::invalid_argument("capacity is too large");
  g.slots = uint32_t(slots);
  g.rows = g.behind + g.chunk + g.ahead;
  g.columns = uint32_t(columns.size());

  uint32_t record = g.kind == Kind::rows ? 0 : sizeof(StepHead);
  for (uint32_t align : {8u, 4u, 2u, 1u})  // widest first: no holes
    for (auto& c : columns) {
      c.plane = c.ragged == 0 && (c.bytes >= (c.windowed && g.stack > 1 ? 64 : kRecordColumn) || c.per_item);
      if (!c.plane && (c.ragged != 0 ? 8 : c.align) == align) {  // of a ragged column the record holds where its bytes are
        c.offset = record;
        record += c.ragged != 0 ? 8 : c.bytes;
      }
    }
  g.record = uint32_t(round_up(record, 8));
  uint64_t slot = round_up(uint64_t(g.record) * g.rows, 64);
  for (auto& c : columns)
    if (c.plane) {
      c.plane_offset = slot;
      slot += round_up(uint64_t(c.bytes) * (c.per_item ? g.cells : g.rows), 64);
    }
  g.slot_bytes = slot;
  constexpr uint64_t kMost = uint64_t(1) << 60;
  if (slot > kMost / slots) throw std::invalid_argument("the rows of so many items do not fit any memory");

  g.offset_bits = bits_for(g.chunk);
  g.slot_bits = bits_for(g.slots);
  lay_out_blocks(g, ragged_row(columns));
  g.lane_bytes = round_up(sizeof(Lane) + sizeof(uint32_t) * (g.desk + 2 * uint64_t(g.streams)), 64);
  g.lanes_at = round_up(sizeof(Header), 64);
  g.metas_at = g.lanes_at + g.lane_bytes * g.lanes;
  g.leaves_at = round_up(g.metas_at + sizeof(SlotMeta) * slots, 64);
  g.staged_at = g.leaves_at + sizeof(double) * tree_leaves(g);
  g.youths_at = g.staged_at + sizeof(double) * tree_leaves(g);
  g.chains_at = g.youths_at + (decays(g) ? sizeof(double) * tree_leaves(g) : 0);
  g.json_at = g.chains_at + (g.blocks > 0 ? sizeof(uint32_t) * slots : 0);
  g.slots_at = round_up(g.json_at + g.json_bytes, 4096);
  g.blocks_at = round_up(g.slots_at + g.slot_bytes * slots, 4096);
  g.total = g.blocks > 0 ? g.blocks_at + g.block * g.blocks : g.slots_at + g.slot_bytes * slots;
}

// Whether a header's geometry is one that `lay_out` makes, and fits into `nbytes`.
inline bool is_laid_out(const Header& h, uint64_t nbytes) {
  const Geometry said = h.geometry;
  constexpr uint32_t kSome = 1 << 20;
  const bool rows = said.kind == Kind::rows;
  if (said.columns > kMaxColumns || said.kind > Kind::unroll || said.sampler > Sampler::min_heap || said.remover > Remover::min_heap || said.consumes > 1 ||
      said.chunk == 0 || said.chunk > 65535 || said.chunk_items == 0 || said.lanes == 0 || said.lanes > 1 << 13 ||
      said.streams == 0 || said.streams > 1 << 16 || said.desk == 0 || said.desk > 1 << 16 || said.capacity == 0 ||
      said.most < said.capacity || said.most > uint64_t(1) << 40 || said.behind > kSome || said.ahead > kSome ||
      said.stack == 0 || said.stack > kSome || said.n_step > kSome || said.burn_in > kSome || said.stride > kSome ||
      said.json_bytes > nbytes)
    return false;
  const auto half_life = [](double said) { return said == 0.0 || (said >= 1.0 && said <= 1e300); };
  if (!half_life(said.recency_half_life) || !half_life(said.lag_half_life) || said.version_column > said.columns) return false;
  if ((said.lag_half_life > 0.0) != (said.version_column > 0)) return false;
  if (said.version_column > 0) {
    const Column& c = h.column[said.version_column - 1];
    if (c.bytes != 8 || c.per_item || c.plane) return false;
  }
  if (!rows && (said.behind + 1 < said.burn_in + said.stack || said.ahead < said.n_step)) return false;
  Geometry again = said;
  std::vector<Column> columns(h.column, h.column + said.columns);
  for (Column& c : columns) {
    if ((c.align != 1 && c.align != 2 && c.align != 4 && c.align != 8) || (c.per_item && said.cells == 0)) return false;
    if (c.ragged != 0) {
      if (c.ragged > said.columns || c.per_item || c.unit == 0 || c.bytes % c.unit != 0 || (c.compressed && c.unit != 1)) return false;
      const Column& length = h.column[c.ragged - 1];
      if (length.ragged != 0 || length.bytes != 4 || length.plane || length.per_item) return false;
    } else if (c.compressed) {
      return false;
    }
    c.offset = 0;
    c.plane_offset = 0;
  }
  try {
    lay_out(again, columns);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return again == said && again.total <= nbytes && std::equal(columns.begin(), columns.end(), h.column);
}

constexpr char kReplayMagic[9] = "APEXRPL6";
constexpr uint32_t kReplayVersion = 8;

}  // namespace apexrl
