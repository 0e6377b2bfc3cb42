// The replay, the workers and the checks of crash_test.cc. Rows carry their number in every byte.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>

#include "../crash.h"
#include "../inbox.h"
#include "check.h"

using namespace apexrl;

namespace {

constexpr uint64_t kCapacity = 64;
constexpr uint32_t kChunk = 4, kStreams = 2, kNStep = 2, kStack = 2, kLength = 4, kStride = 2, kDesk = 2, kBatch = 7;
constexpr uint32_t kLarge = 80;  // bytes: a plane of its own
constexpr uint32_t kText = 600;  // the most of a ragged column: in up to four blocks
constexpr uint64_t kWorkers = 5, kTags = 1'000'000;  // worker w writes tags from w · kTags on

// What the processes of one trial tell each other.
struct Notes {
  CrashPoint died[3];
  std::atomic<uint32_t> published;  // of `tag`: rows that were published when the call returned, in order
  std::atomic<uint64_t> attempted[kWorkers];  // per worker: the largest tag that it tried to write
  uint64_t tag[4096];
  std::atomic<uint32_t> given;      // of `taken`: rows that a fifo sampler gave out
  uint64_t taken[4096];
};
Notes* notes = nullptr;

struct Flavour {
  const char* name;
  Kind kind;
  Sampler sampler = Sampler::prioritized;
  Remover remover = Remover::fifo;
  bool travels = false;  // its items go to another host, chunk by chunk
  bool ages = false;     // older items are drawn less often
  bool ragged = false;   // with a column whose rows vary in length
};
bool chunks_travel = false;  // of the flavour under trial

// --- a replay whose rows carry their number in every byte, with no more slots than it must have

std::shared_ptr<Replay> make(const Flavour& flavour, uint32_t lanes) {
  const bool stream = flavour.kind != Kind::rows, transition = flavour.kind == Kind::transition;
  const bool steps = stream && !transition;
  Geometry g{};
  g.kind = flavour.kind;
  g.sampler = flavour.sampler;
  g.consumes = flavour.sampler == Sampler::fifo;
  g.remover = flavour.remover;
  g.remover_alpha = -0.4;
  g.trim_every = 1;
  g.capacity = kCapacity;
  g.chunk = steps ? 2 * kChunk : kChunk;
  g.stack = transition ? kStack : 1;
  g.n_step = steps ? kLength : transition ? kNStep : 1;
  g.burn_in = steps ? 1 : 0;
  g.stride = flavour.kind == Kind::unroll ? kLength : steps ? kStride : 0;
  g.cells = steps ? 2 * g.chunk / g.stride : 0;
  g.chunk_items = steps ? g.cells : g.chunk;
  g.behind = stream ? g.burn_in + g.stack - 1 : 0;
  g.ahead = stream ? g.n_step : 0;
  g.lanes = lanes;
  g.streams = stream ? kStreams * lanes : 1;
  g.gamma = 0.9;
  g.alpha = 1.0;
  g.seed = 1;
  if (flavour.ages) g = testing::decaying(g, 0.02 * kCapacity, 8.0);
  std::vector<Column> columns{Column{8, 8, stream, 1, 0, 0, 0, 0}, Column{kLarge, 1, stream, 1, 0, 0, 0, 0}};
  if (flavour.ragged) {
    columns.push_back(Column{kText, 1, stream, 1, 0, 0, 0, 0, 4, 1});
    columns.push_back(Column{4, 4, stream, 1, 0, 0, 0, 0});
  }
  auto replay = Replay::create(g, columns, "{}", 0, 0.0, 0.0, "");
  Geometry& tight = replay->view().header().geometry;
  if (!stream && flavour.remover == Remover::fifo) {
    tight.desk = kDesk;
    tight.slots = uint32_t(kCapacity / kChunk + lanes * (1 + kDesk) + 2);
  }
  return replay;
}

bool known(uint64_t tag) { return tag / kTags < kWorkers && tag <= notes->attempted[tag / kTags]; }

// A row's ragged value is as long as its number says, none at times, and carries the number in every byte too.
int32_t length_of(uint64_t tag) { return int32_t(tag % 5 == 0 ? 0 : tag % 7 == 0 ? kText : tag * 37 % 150); }

struct Rows {
  std::vector<uint64_t> tag;
  std::vector<uint8_t> large, text;
  std::vector<int32_t> length;
  explicit Rows(size_t n) : tag(n), large(n * kLarge), text(n * kText), length(n) {}
  void set(size_t i, uint64_t value) {
    tag[i] = value;
    std::fill_n(large.begin() + std::ptrdiff_t(i * kLarge), kLarge, uint8_t(value * 7));
    length[i] = length_of(value);
    std::fill_n(text.begin() + std::ptrdiff_t(i * kText), length[i], uint8_t(value * 7));
    notes->attempted[value / kTags] = value;
  }
  std::vector<const uint8_t*> data() const {
    return {reinterpret_cast<const uint8_t*>(tag.data()), large.data(), text.data(), reinterpret_cast<const uint8_t*>(length.data())};
  }
};

uint64_t tag_of(const View& view, uint32_t slot, uint32_t row) {
  const Header& h = view.header();
  uint64_t tag;
  std::memcpy(&tag, view.cell(h.column[0], slot, row), 8);
  const uint8_t* large = view.cell(h.column[1], slot, row);
  for (uint32_t b = 0; b < kLarge; ++b) CHECK(large[b] == uint8_t(tag * 7));
  CHECK(known(tag));
  if (h.geometry.columns > 2) {
    uint8_t text[kText];
    CHECK(ragged_bytes(view, h.column[2], slot, row) == uint32_t(length_of(tag)));
    read_ragged(view, h.column[2], slot, row, text, kText);
    for (uint32_t b = 0; b < kText; ++b) CHECK(text[b] == (b < uint32_t(length_of(tag)) ? uint8_t(tag * 7) : 0));
  }
  return tag;
}

void acknowledge(uint64_t tag) {
  const uint32_t n = notes->published.load();
  CHECK(n < std::size(notes->tag));
  notes->tag[n] = tag;
  notes->published.store(n + 1);
}

// --- a worker. `help` is called when there is no room; false from it ends the call.

using Help = std::function<bool()>;

class Worker {
 public:
  Worker(const Replay& replay, uint64_t number)
      : view_(replay.view()),
        streams_(rows() ? 1 : kStreams),
        writer_(replay.segment(), streams_),
        next_(number * kTags + 2) {
    CHECK(writer_.lease() == WriteStatus::ok);
  }
  // About n items.
  void write(uint64_t n, const Help& help) {
    rows() ? write_rows(n, help) : write_steps(n / kStreams * std::max(1u, view_.geometry().stride), help);
  }
  void wait() { writer_.wait(1'000'000); }

 private:
  bool rows() const { return view_.geometry().kind == Kind::rows; }

  void write_rows(uint64_t n, const Help& help) {
    for (const uint64_t end = next_ + n; next_ < end;) {
      const size_t count = size_t(std::min<uint64_t>(end - next_, kBatch));
      Rows rows(count);
      const std::vector<double> priority(count, 1.0);
      for (size_t i = 0; i < count; ++i) rows.set(i, next_ + i);
      size_t start = 0;
      for (int tries = 0; start < count; ++tries) {
        const size_t before = start;
        const WriteStatus status = writer_.extend(rows.data().data(), priority.data(), count, start);
        for (size_t i = before; i < start; ++i) acknowledge(next_++);
        CHECK((status == WriteStatus::ok || status == WriteStatus::wait) && tries < 10'000);
        if (status == WriteStatus::wait && !help()) return;
      }
    }
  }

  // n steps of two streams: even tags and odd tags; an episode ends now and then.
  void write_steps(uint64_t n, const Help& help) {
    const float reward[kStreams] = {1.0f, 1.0f};
    Rows rows(kStreams);
    for (const uint64_t end = next_ + 2 * n; next_ < end; next_ += 2) {
      const uint64_t t = next_ / 2;
      const uint8_t terminated[kStreams] = {t % 11 == 5, 0}, truncated[kStreams] = {0, t % 13 == 7};
      for (uint32_t s = 0; s < kStreams; ++s) rows.set(s, next_ + s);
      bool stored = false;
      for (int tries = 0; !stored; ++tries) {
        const WriteStatus status =
            writer_.append(rows.data().data(), reward, terminated, truncated, nullptr, kStreams, stored);
        CHECK((status == WriteStatus::ok || status == WriteStatus::wait || status == WriteStatus::publish) && tries < 10'000);
        if (status == WriteStatus::publish) publish();
        else if (!stored && !help()) return publish();
      }
      if (t % 6 == 0) publish();
    }
    publish();
  }

  void publish() {
    std::vector<ItemRef> items;
    while (writer_.pending(items) > 0) {
      std::vector<uint64_t> tags;
      for (const auto& item : items) tags.push_back(tag_of(view_, item.slot, item.row));
      const std::vector<double> priority(items.size(), 1.0);
      writer_.publish(priority.data());
      for (const uint64_t tag : tags) acknowledge(tag);
    }
  }

  View view_;
  uint32_t streams_;
  Writer writer_;
  uint64_t next_;
};

// A worker from lease to release. Where slots are free or someone frees them, it does not wait for long.
void work(const Replay& replay, uint64_t number) {
  Worker worker(replay, number);
  worker.write(26, [&] { return worker.wait(), true; });
}

// An item was given out, which must not have been given out before.
void give(uint64_t tag) {
  const uint32_t given = notes->given.load();
  CHECK(given < std::size(notes->taken));
  CHECK(std::count(notes->taken, notes->taken + given, tag) == 0);
  notes->taken[given] = tag;
  notes->given.store(given + 1);
}

// Takes chunks of at most 16 items in all, as an uplink does. False: there are none.
bool take(const Replay& replay, Owner& owner) {
  const View& view = replay.view();
  const uint32_t behind = view.geometry().behind;
  std::vector<ChunkHead> heads;
  std::vector<uint8_t> bodies;
  if (owner.take_chunks(0, 16 * chunk_bytes(view, 1, 1, 1), kCapacity, heads, bodies) != SampleStatus::ok) return false;
  const uint8_t* body = bodies.data();
  for (const ChunkHead& head : heads) {
    CHECK(flaw_of(view, head, body, head.bytes, least_priority(view)) == nullptr);
    const uint8_t* staged = body + head.rows * sizeof(StepHead);
    const uint8_t* tags = staged + head.positions * sizeof(double);
    for (uint32_t p = 0; p < head.positions; ++p) {
      double priority;
      uint64_t tag;
      std::memcpy(&priority, staged + p * sizeof priority, sizeof priority);
      std::memcpy(&tag, tags + (behind + p) * sizeof tag, sizeof tag);
      if (priority >= 0.0) give(tag);
    }
    body += head.bytes;
  }
  return true;
}

// Samples 16 items; their keys. What a fifo sampler gives out is noted, and must not have been given out before.
std::vector<uint64_t> draw(const Replay& replay, Owner& owner) {
  const View& view = replay.view();
  const Geometry& g = view.geometry();
  if (chunks_travel && g.sampler == Sampler::fifo) {
    for (int calls = 0; calls < 4 && take(replay, owner); ++calls) {}
    return {};
  }
  constexpr size_t n = 16;
  const size_t steps = g.burn_in + g.n_step, rows = g.stride > 0 ? steps + 1 : g.stack;  // of a windowed column
  std::vector<uint64_t> tag(n * rows), next(n * rows), keys(n);
  std::vector<uint8_t> large(n * rows * kLarge), next_large(large.size()), mask(n * steps), first(n * (steps + 1));
  std::vector<uint8_t> text(n * rows * kText), next_text(text.size());
  std::vector<float> reward(n * steps), discount(n * steps), weights(n);
  std::vector<double> probabilities(n);
  Outputs out;
  out.n = n;
  out.column = {reinterpret_cast<uint8_t*>(tag.data()), large.data()};
  out.next_column = {nullptr, nullptr};
  if (g.kind == Kind::transition) out.next_column = {reinterpret_cast<uint8_t*>(next.data()), next_large.data()};
  if (g.columns > 2) {
    out.column.insert(out.column.end(), {text.data(), nullptr});
    out.next_column.insert(out.next_column.end(), {g.kind == Kind::transition ? next_text.data() : nullptr, nullptr});
  }
  const auto reads = [&](const std::vector<uint8_t>& texts, size_t k, uint64_t tag) {
    return g.columns == 2 || std::count(&texts[k * kText], &texts[k * kText] + kText, uint8_t(tag * 7)) == length_of(tag) ||
           uint8_t(tag * 7) == 0;
  };
  out.reward = reward.data();
  out.discount = discount.data();
  out.mask = mask.data();
  out.first = first.data();
  out.keys = keys.data();
  out.probabilities = probabilities.data();
  out.weights = weights.data();
  if (owner.sample(0.4, out) != SampleStatus::ok) return {};
  for (size_t i = 0; i < n; ++i) {
    const size_t own = i * rows + (g.stride > 0 ? g.burn_in : g.stack - 1);
    for (size_t k = i * rows; k < (i + 1) * rows; ++k) {
      if (g.stride > 0 && (k % rows == steps || !mask[i * steps + k % rows])) continue;  // padding
      CHECK(known(tag[k]) && std::count(&large[k * kLarge], &large[(k + 1) * kLarge], uint8_t(tag[k] * 7)) == kLarge);
      CHECK(reads(text, k, tag[k]));
      CHECK(tag[k] == tag[own] || tag[k] == tag[own] + kStreams * k - kStreams * own);
    }
    CHECK(probabilities[i] > 0.0);
    if (g.kind == Kind::transition) {
      const uint64_t later = next[own] - tag[own];
      CHECK(later > 0 && later <= kStreams * kNStep && later % kStreams == 0);
      CHECK(next_large[own * kLarge] == uint8_t(next[own] * 7) && reads(next_text, own, next[own]));
    }
    if (g.sampler == Sampler::fifo) give(tag[own]);
  }
  return keys;
}

// The tags of all items, after a look at every row of their windows.
std::set<uint64_t> contents(const Replay& replay, Owner& owner) {
  const View& view = replay.view();
  const Geometry& g = view.geometry();
  std::set<uint64_t> tags;
  Snapshot snapshot;
  CHECK(owner.snapshot(snapshot));
  for (const auto& s : snapshot.slots())
    for (uint32_t p = view.meta(s.slot).consumed.load(); p < s.visible; ++p) {
      if (view.staged(s.slot)[p] < 0.0) continue;
      const uint32_t row = g.behind + p;
      const uint64_t tag = tag_of(view, s.slot, row);
      CHECK(tags.insert(tag).second);  // nothing twice
      CHECK(g.sampler == Sampler::fifo || view.leaves(s.slot)[p] > 0.0);
      if (g.kind == Kind::rows) continue;
      const ItemRef item = item_at(view, s.slot, row, g.rows);
      CHECK(item.span > 0);
      for (uint32_t k = 0; k < item.span; ++k) CHECK(tag_of(view, s.slot, row + k) == tag + kStreams * k);
    }
  CHECK(tags.size() == owner.size());
  return tags;
}

}  // namespace
